"""What a waiting request waits for, turn by turn of the Scheduler. Pure."""

import numpy as np

from ...messages import Grant
from ..batching import BatchLimits
from .chronicle import Chronicle, Request, SchedulerTurn
from .story import Cause, Wait


class Waiting:
    """Tells what one request waited for in any stretch of time."""

    def __init__(self, chronicle: Chronicle, limits: BatchLimits, request: Request) -> None:
        self._chronicle = chronicle
        self._limits = limits
        self._request = request
        self._serial = request.generate.serial

    def between(self, begin_ns: int, end_ns: int) -> tuple[Wait, ...]:
        """What it waited for, without a gap."""
        waits: list[Wait] = []
        cause, detail, since_ns = Cause.TURN, "", begin_ns
        for turn in self._chronicle.turns:
            if not begin_ns <= turn.t_ns < end_ns or not self._is_heard(turn):
                continue
            told = self._cause(turn)
            if told is None and cause == Cause.TURN:
                told = Cause.STEP, f"{turn.steps_in_flight} in flight"
            if told is None or told == (cause, detail):
                continue
            add_wait(waits, Wait(cause, since_ns, turn.t_ns, detail))
            (cause, detail), since_ns = told, turn.t_ns
        add_wait(waits, Wait(cause, since_ns, end_ns, detail))
        return tuple(waits)

    def _is_heard(self, turn: SchedulerTurn) -> bool:
        heard_ns = self._request.heard_ns
        return heard_ns is None or turn.t_ns >= heard_ns

    def _cause(self, turn: SchedulerTurn) -> tuple[Cause, str] | None:
        """Why this turn did not let it run; None where the turn decided nothing."""
        request, limits = self._request, self._limits
        if request.generate.grammar is not None and (request.grammar_ns or 2**63) > turn.t_ns:
            return Cause.GRAMMAR, ""
        if turn.is_paused:
            return Cause.PAUSE, ""
        if turn.awaits_weights:
            return Cause.WEIGHTS, ""
        asked = [a for a in turn.admissions if a.ask.serial == self._serial and a.answer]
        if asked and asked[-1].answer is not None and not asked[-1].is_full:
            answer, need = asked[-1].answer, limits.blocks_for(len(asked[-1].ask.token_ids))
            due = ", more are due" if answer.outcome == Grant.LATER else ""
            return Cause.BLOCKS, f"{need} needed, {answer.num_free} free{due}"
        if not turn.steps:
            return None
        if turn.running >= limits.max_num_seqs:
            return Cause.SEAT, f"{turn.running} of {limits.max_num_seqs} taken"
        maker = self._maker(turn)
        if maker is not None:
            return Cause.PREFIX, f"behind {self._chronicle.name(maker)}"
        tokens = sum(step.plan.num_tokens for step in turn.steps)
        if tokens >= limits.max_num_batched_tokens * len(turn.steps):
            return Cause.BUDGET, f"{tokens} tokens planned"
        refused = [a.ask.serial for a in turn.admissions if not a.is_full]
        if refused:
            return Cause.OTHERS, f"behind {self._chronicle.name(refused[0])}"
        return Cause.DRAIN, ""

    def _maker(self, turn: SchedulerTurn) -> int | None:
        """Whose row this turn let compute what both prompts have in common, with more of it to
        come: see `PrefixesInMaking`."""
        own, size = self._request.generate, self._limits.block_size
        if not self._limits.prefix_caching:
            return None
        step = turn.steps[-1]
        for serial, start, length in zip(
            step.serials.tolist(),
            step.plan.starts.tolist(),
            step.plan.lengths.tolist(),
            strict=True,
        ):
            other = self._chronicle.requests.get(serial)
            if other is None or serial == self._serial:
                continue
            prompt, end = other.generate.prompt, ((start + length) // size + 1) * size
            is_for_both = end <= min(len(prompt), len(own.prompt) - 1)
            if is_for_both and np.array_equal(prompt[:end], own.prompt[:end]):
                return int(serial)
        return None


def add_wait(waits: list[Wait], wait: Wait) -> None:
    """What took no time is not told, and what goes on with another count is one wait."""
    if wait.end_ns <= wait.begin_ns:
        return
    if waits and waits[-1].cause == wait.cause:
        before = waits.pop()
        wait = Wait(wait.cause, before.begin_ns, wait.end_ns, before.detail or wait.detail)
    waits.append(wait)
