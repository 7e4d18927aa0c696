"""Conservation: every request and every step that begins has exactly one end."""

from stepahead import Engine
from stepahead.actors.detokenizer import Detokenizer
from stepahead.actors.journal import Turn
from stepahead.actors.wiring import Wiring
from stepahead.messages import (
    Finished,
    Generate,
    Message,
    StepDone,
    StepFailed,
    StepPlan,
    TokensReady,
)


class Conservation:
    """Follows the messages of one engine. While its device does not fail, every token that is
    sampled for a live sequence counts, however often that was preempted."""

    def __init__(self, wiring: Wiring, *, is_reliable: bool) -> None:
        self.messages = 0
        self._wiring = wiring
        self._live: set[int] = set()  # serials that the Scheduler has and has not ended
        self._unfinished: set[int] = set()  # serials whose callers have not heard the end
        self._requests = 0
        self._posted = self._done = 0
        self._is_reliable = is_reliable
        self._riders: dict[int, set[int]] = {}  # serials that each step in flight samples for
        self._lengths: dict[int, int] = {}  # tokens before the last result, of those it is for
        wiring.journal.attach(self._hear)

    def _hear(self, actor: str, turn: Turn[Message]) -> None:
        for envelope in turn.envelopes:
            self.messages += 1
            match envelope.message:
                case Generate(serial=serial) if actor == "detokenizer":
                    self._requests += 1
                    self._live.add(serial)
                    self._unfinished.add(serial)
                case Finished(serial=serial):
                    assert serial in self._unfinished, "a request finished twice"
                    self._unfinished.remove(serial)
                case TokensReady(ended=ended):
                    for end in ended:
                        assert end.serial in self._live, "a sequence ended twice"
                        self._live.remove(end.serial)
                case StepPlan() as plan:
                    self._posted += 1
                    assert plan.step == self._posted, "a step is missing, or doubled"
                    serials = self._wiring.batcher._ledger.serial[plan.slots[plan.samples]]
                    self._riders[plan.step] = set(serials.tolist())
                case StepDone(step=step) | StepFailed(step=step):
                    self._done += 1
                    assert step == self._done <= self._posted, "a result out of order"
                case _:
                    pass
        if actor == "scheduler":
            self._check_tokens(turn)

    def _check_tokens(self, turn: Turn[Message]) -> None:
        """The last result gave each live sequence it was for a token; note for whom the next is."""
        results = [e.message.step for e in turn.envelopes if isinstance(e.message, StepDone)]
        if not self._is_reliable or not results:
            return
        for serial, length in self._lengths.items():
            assert self._length(serial, length + 1) > length, "a sampled token was lost"
        riders = self._riders.pop(results[0])
        self._lengths = {serial: self._length(serial, -1) for serial in riders}
        self._lengths = {serial: n for serial, n in self._lengths.items() if n >= 0}

    def _length(self, serial: int, if_ended: int) -> int:
        """How many tokens a sequence has now."""
        batcher = self._wiring.batcher
        sequence = batcher._roster.get(serial)
        return if_ended if sequence is None else len(batcher._ledger.confirmed_tokens(sequence))

    def check_all_is_over(self, admitted: int, engine: Engine) -> None:
        """Nothing is left, anywhere."""
        wiring = self._wiring
        assert self._requests == admitted, "admitted is not what Intake passed on"
        assert engine.stats().requests_finished == admitted, "admitted is not finished"
        assert not self._unfinished, "a caller heard no end"
        assert not self._live, "a sequence did not end"
        assert self._posted == self._done, "a step has no result"
        ledger = wiring.batcher._ledger
        assert ledger.num_taken == 0, "slots leaked"
        assert len(wiring.streams) == 0, "streams leaked"
        for actor in wiring.actors:
            assert not isinstance(actor, Detokenizer) or not actor._live, "outputs leaked"
