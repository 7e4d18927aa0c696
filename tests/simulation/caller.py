"""A caller: sends one request of a script, reads in its own way, and remembers what came."""

import asyncio
from collections.abc import Iterable

from stepahead import (
    Engine,
    EngineDead,
    EngineOverloaded,
    FinishReason,
    RequestFailed,
    SamplingParams,
)
from stepahead.actors.batching.limits import MAX_PREEMPTIONS
from stepahead.actors.text.toy import ToyTokenizer
from stepahead.messages import Timings, Usage

from ..batching import ROW_ERROR, STEP_ERROR
from .expected import Answer, oracles_of, whole_answer
from .script import BreakDevice, FailRow, FailStep, ReloadWeights, Script, Submit

GIVEN_UP, REFUSED, DEAD = "given up", "refused", "dead"  # ends beside the finish reasons


class Caller:
    """One request; `end` says what became of it once its task is over."""

    def __init__(self, submit: Submit) -> None:
        self.submit = submit
        self.prompt = submit.prompt()
        self.has_begun = False
        self.end: str = GIVEN_UP
        self.error: str | None = None
        self.said: list[int] = []
        self.text = ""
        self.usage: Usage | None = None
        self.timings: Timings | None = None

    async def run(self, engine: Engine) -> None:
        self.has_begun = True
        try:
            await (self._wait(engine) if self.submit.is_whole else self._read(engine))
        except EngineOverloaded:
            self.end = REFUSED
        except EngineDead:
            self.end = DEAD
        except RequestFailed as failure:
            self.end, self.error, self.text = str(FinishReason.ERROR), str(failure), failure.text

    async def _wait(self, engine: Engine) -> None:
        result = await engine.generate(self.prompt, self._params(), **self._options())  # type: ignore[arg-type]  # passed on
        self.said, self.text = list(result.token_ids), result.text
        self.usage, self.timings = result.usage, result.timings
        self.end = str(result.finish_reason)

    async def _read(self, engine: Engine) -> None:
        submit = self.submit
        async for delta in engine.stream(self.prompt, self._params(), **self._options()):  # type: ignore[arg-type]  # passed on
            self.said += delta.token_ids
            self.text += delta.text
            if delta.finish_reason is not None:
                self.usage, self.timings = delta.usage, delta.timings
                self.end, self.error = str(delta.finish_reason), str(delta.stop_reason)
                return
            if submit.leave_after is not None and len(self.said) > submit.leave_after:
                return
            if submit.pause:
                await asyncio.sleep(submit.pause / 1e3)

    def _params(self) -> SamplingParams:
        submit = self.submit
        return SamplingParams(
            max_tokens=submit.max_tokens,
            min_tokens=submit.min_tokens,
            stop=submit.stop,
            stop_token_ids=submit.stop_token_ids,
            ignore_eos=submit.ignore_eos,
            seed=0,
        )

    def _options(self) -> dict[str, object]:
        submit = self.submit
        return {
            "request_id": submit.name,
            "priority": submit.priority,
            "cache_salt": submit.salt,
            "deadline": _seconds(submit.deadline),
            "queue_timeout": _seconds(submit.queue_timeout),
        }

    # What must hold at the end

    def check(self, script: Script, named: set[str]) -> None:
        """It heard its own answer, and ended for a reason that the script gives; `named` are the
        requests that somebody gave up on."""
        name, answer = self.submit.name, Answer(self.submit, script.settings, oracles_of(script))
        for token_id in self.said:
            assert answer.says(token_id), f"{name} heard other tokens than its own"
            assert answer.reason is None, f"{name} heard a token after the end"
            answer.push(token_id)
        if self.end in (FinishReason.STOP, FinishReason.LENGTH):
            assert self.end == answer.reason, f"{name} ended by {self.end}, not {answer.reason}"
            assert self.text == answer.text, f"{name} was shown another text"
        elif not self.is_unread:
            shown = ToyTokenizer().decode(self.said)
            assert shown.startswith(self.text), f"{name} was shown another text"
        if self.end == FinishReason.ABORT:
            assert name in named, f"{name} was aborted by nobody"
        if self.end == FinishReason.TIMEOUT:
            self._check_timeout()
        if self.end == FinishReason.ERROR:
            assert self.error in (ROW_ERROR, STEP_ERROR), f"{name} failed: {self.error}"
        self._check_times()
        self._check_account()
        self._check_preemptions(script)

    @property
    def was_admitted(self) -> bool:
        return self.has_begun and self.end != REFUSED

    @property
    def is_unread(self) -> bool:
        """Whether its tokens are not known: who waits for the whole answer gets no part of it."""
        return self.submit.is_whole and self.end == FinishReason.ERROR

    def _check_timeout(self) -> None:
        """Not before its time."""
        submit, limits = self.submit, [self.submit.deadline, self.submit.queue_timeout]
        due = min((limit for limit in limits if limit is not None), default=None)
        assert due is not None, f"{submit.name} had no deadline"
        assert self.timings is not None
        assert self.timings.total_s > due / 1e3 - 1e-6, f"{submit.name} timed out early"

    def _check_times(self) -> None:
        """A deadline is kept to the millisecond, whatever the engine is busy with."""
        submit, timings = self.submit, self.timings
        if timings is None:
            return
        if submit.deadline is not None:
            assert timings.total_s < (submit.deadline + 1) / 1e3, f"{submit.name} timed out late"
        if submit.queue_timeout is not None:
            assert timings.queue_s < (submit.queue_timeout + 1) / 1e3, f"{submit.name} queued late"

    def _check_account(self) -> None:
        if self.usage is None:
            return
        name = self.submit.name
        assert self.usage.prompt_tokens == len(self.prompt), f"{name}: wrong prompt tokens"
        assert self.usage.completion_tokens == len(self.said), f"{name}: wrong completion tokens"

    def _check_preemptions(self, script: Script) -> None:
        """Rule 14, where nobody overtakes and the device never fails."""
        submits = [operation for operation in script.operations if isinstance(operation, Submit)]
        is_one_class = len({submit.priority for submit in submits}) == 1
        voids = (FailRow, FailStep, BreakDevice, ReloadWeights)
        is_calm = not any(isinstance(operation, voids) for operation in script.operations)
        if is_one_class and is_calm and script.settings.ageing is None and self.timings:
            most = self.timings.preemptions
            assert most <= MAX_PREEMPTIONS, f"{self.submit.name} was preempted {most} times"

    def check_hit(self, callers: Iterable["Caller"], script: Script) -> None:
        """What was found of its prompt, others with its salt have said, as far as that is known."""
        if self.usage is None or not self.usage.cached_tokens or len(oracles_of(script)) > 1:
            return
        found = self.prompt[: self.usage.cached_tokens]
        assert any(
            other is not self
            and other.submit.salt == self.submit.salt
            and other.may_have_said(script)[: len(found)] == found
            for other in callers
        ), f"{self.submit.name} found what nobody with its salt has said"

    def may_have_said(self, script: Script) -> list[int]:
        """Its prompt and its answer, as far as that can have come."""
        oracle = oracles_of(script)[0]
        return [*self.prompt, *whole_answer(self.submit, script.settings, oracle)]


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3
