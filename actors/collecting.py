"""Collecting deltas into a whole result: pure."""

from dataclasses import replace

from ..messages import (
    AnswerPart,
    Delta,
    FinishReason,
    Output,
    PositionLogprobs,
    RequestFailed,
    Result,
    Timings,
    Usage,
    joined_parts,
)


class Answer:
    """What has come of one of a request's answers."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._token_ids: list[int] = []
        self._parts: list[AnswerPart] = []
        self._logprobs: list[PositionLogprobs] = []
        self.last: Delta | None = None

    def add(self, delta: Delta) -> None:
        self.last = delta
        self._pieces.append(delta.text)
        self._token_ids += delta.token_ids
        self._parts += delta.parts
        self._logprobs += delta.logprobs or ()

    def output(self) -> Output:
        """The whole answer. Raises RequestFailed if it failed on the way."""
        last, text = self.last, "".join(self._pieces)
        assert last is not None
        assert last.finish_reason is not None
        if last.finish_reason is FinishReason.ERROR:
            raise RequestFailed(str(last.stop_reason), text)
        return Output(
            last.index,
            text,
            tuple(self._token_ids),
            last.finish_reason,
            last.stop_reason,
            joined_parts(self._parts),
            None if last.logprobs is None else tuple(self._logprobs),
        )


class Collected:
    """What has come of a request."""

    def __init__(self) -> None:
        self._answers: dict[int, Answer] = {}
        self._prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None

    def add(self, delta: Delta) -> None:
        self._answers.setdefault(delta.index, Answer()).add(delta)
        self._prompt_logprobs = delta.prompt_logprobs or self._prompt_logprobs

    def result(self) -> Result:
        """The result, once the last delta of each answer was added. Raises RequestFailed if one
        of them failed, or if there is nothing."""
        if not self._answers:
            raise RequestFailed("the stream was closed or read to its end before; nothing is left")
        answers = [self._answers[index] for index in sorted(self._answers)]
        outputs = tuple(answer.output() for answer in answers)
        lasts = [answer.last for answer in answers if answer.last is not None]
        usages = [last.usage for last in lasts if last.usage is not None]
        timings = [last.timings for last in lasts if last.timings is not None]
        return Result(
            lasts[0].request_id, outputs, _total(usages), _over_all(timings), self._prompt_logprobs
        )


def _total(usages: list[Usage]) -> Usage:
    """The prompt is counted once: what the first answer's sequence found in the cache."""
    return replace(usages[0], completion_tokens=sum(usage.completion_tokens for usage in usages))


def _over_all(timings: list[Timings]) -> Timings:
    """From the first token of any answer to the end of the slowest."""
    slowest = max(timings, key=lambda timing: timing.total_s)
    return replace(
        slowest,
        queue_s=min(timing.queue_s for timing in timings),
        ttft_s=min((t.ttft_s for t in timings if t.ttft_s is not None), default=None),
        preemptions=sum(timing.preemptions for timing in timings),
    )
