"""Logprobs as tables to read."""

from collections.abc import Sequence

from ..messages import Delta, PositionLogprobs, TokenLogprob
from .render import table

Told = Sequence[PositionLogprobs | None]


class ToldTokens:
    """What the deltas of an answer tell of logprobs, to be shown below its text."""

    def __init__(self) -> None:
        self._prompt: Told = ()
        self._answer: list[PositionLogprobs] = []

    def add(self, delta: Delta) -> None:
        self._answer += delta.logprobs or ()
        self._prompt = delta.prompt_logprobs or self._prompt

    def tables(self) -> str:
        """An empty line and a table for the prompt and for the answer, each where it was told."""
        told = {"prompt": self._prompt, "answer": self._answer}
        return "".join("\n" + logprob_table(name, own) for name, own in told.items() if own)


def logprob_table(heading: str, told: Told) -> str:
    """A line for each token: what it is, how likely it was, and what was likelier."""
    rows = [
        ("-", "", "", "")
        if own is None
        else (*_cells(own.token), str(own.token.rank), _others(own))
        for own in told
    ]
    return table(rows, (heading, "logprob", "rank", "beside it"))


def _cells(one: TokenLogprob) -> tuple[str, str]:
    return repr(one.text if one.text is not None else one.token_id), f"{one.logprob:.4f}"


def _others(told: PositionLogprobs) -> str:
    return "  ".join(" ".join(_cells(one)) for one in (*told.top, *told.asked))
