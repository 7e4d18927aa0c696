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
    """Follows the messages of one engine."""

    def __init__(self, wiring: Wiring) -> None:
        self.messages = 0
        self._wiring = wiring
        self._live: set[int] = set()  # serials that the Scheduler has and has not ended
        self._unfinished: set[int] = set()  # serials whose callers have not heard the end
        self._requests = 0
        self._posted = self._done = 0
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
                case StepPlan(step=step):
                    self._posted += 1
                    assert step == self._posted, "a step is missing, or doubled"
                case StepDone(step=step) | StepFailed(step=step):
                    self._done += 1
                    assert step == self._done <= self._posted, "a result out of order"
                case _:
                    pass

    def check_all_is_over(self, admitted: int, engine: Engine) -> None:
        """Nothing is left, anywhere."""
        wiring = self._wiring
        assert self._requests == admitted, "admitted is not what Intake passed on"
        assert engine.stats().requests_finished == admitted, "admitted is not finished"
        assert not self._unfinished, "a caller heard no end"
        assert not self._live, "a sequence did not end"
        assert self._posted == self._done, "a step has no result"
        ledger = wiring.batcher._ledger
        assert len(ledger._free) == ledger.num_slots, "slots leaked"
        assert len(wiring.streams) == 0, "streams leaked"
        for actor in wiring.actors:
            assert not isinstance(actor, Detokenizer) or not actor._live, "outputs leaked"
