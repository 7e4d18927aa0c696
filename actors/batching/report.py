"""What one turn has to tell the Detokenizer, collected and then posted as one message."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ...messages import (
    NO_INTS,
    NO_LONGS,
    Admitted,
    Ended,
    Ints,
    Logprobs,
    Longs,
    Preempted,
    TokensReady,
    seal,
)
from .logprobs import joined

T = TypeVar("T", bound=np.generic)


class Report:
    """Collects the tokens and events of a turn."""

    def __init__(self) -> None:
        self._serials: list[Longs] = []
        self._token_ids: list[Ints] = []
        self._admitted: list[Admitted] = []
        self._preempted: list[Preempted] = []
        self._ended: list[Ended] = []
        self._logprobs: list[Logprobs] = []

    def add_tokens(self, serials: Longs, token_ids: Ints) -> None:
        if len(serials):
            self._serials.append(serials)
            self._token_ids.append(token_ids)

    def add_logprobs(self, logprobs: Logprobs | None) -> None:
        if logprobs is not None:
            self._logprobs.append(logprobs)

    def add(self, event: Admitted | Preempted | Ended) -> None:
        match event:
            case Admitted():
                self._admitted.append(event)
            case Preempted():
                self._preempted.append(event)
            case Ended():
                self._ended.append(event)

    def take(self) -> TokensReady | None:
        """The collected message, or None when there is nothing to tell; starts afresh."""
        columns = (self._serials, self._admitted, self._preempted, self._ended, self._logprobs)
        if not any(columns):
            return None
        message = TokensReady(
            _joined(self._serials) if self._serials else NO_LONGS,
            _joined(self._token_ids) if self._token_ids else NO_INTS,
            tuple(self._admitted),
            tuple(self._preempted),
            tuple(self._ended),
            joined(self._logprobs),
        )
        self.__init__()  # type: ignore[misc]  # a fresh report
        return message


def _joined(columns: list[NDArray[T]]) -> NDArray[T]:
    return seal(np.concatenate(columns) if len(columns) > 1 else columns[0])
