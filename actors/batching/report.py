"""What one turn has to tell the Detokenizer, collected and then posted as one message."""

import numpy as np

from ...messages import NO_INTS, Admitted, Ended, Ints, Preempted, TokensReady, seal


class Report:
    """Collects the tokens and events of a turn."""

    def __init__(self) -> None:
        self._serials: list[Ints] = []
        self._token_ids: list[Ints] = []
        self._admitted: list[Admitted] = []
        self._preempted: list[Preempted] = []
        self._ended: list[Ended] = []

    def add_tokens(self, serials: Ints, token_ids: Ints) -> None:
        if len(serials):
            self._serials.append(serials)
            self._token_ids.append(token_ids)

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
        if not (self._serials or self._admitted or self._preempted or self._ended):
            return None
        message = TokensReady(
            _joined(self._serials),
            _joined(self._token_ids),
            tuple(self._admitted),
            tuple(self._preempted),
            tuple(self._ended),
        )
        self.__init__()  # type: ignore[misc]  # a fresh report
        return message


def _joined(columns: list[Ints]) -> Ints:
    if not columns:
        return NO_INTS
    return seal(np.concatenate(columns) if len(columns) > 1 else columns[0])
