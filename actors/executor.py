"""The Executor actor: hands the device its steps, in order.

A plan reaches the device in the Scheduler's own turn: it is numbered like every other message, but
does not wait for the event loop, which may have hundreds of readers to serve first.
"""

from ..gpu.device import Device
from ..messages import StepDone, StepFailed, StepPlan
from .actor import Actor, Address, Mailbox
from .journal import Journal, Turn


class Executor(Actor[StepPlan]):
    """Launches each step as it arrives; the device posts one result each, in order (rule 3)."""

    def __init__(
        self,
        mailbox: Mailbox[StepPlan],
        journal: Journal,
        device: Device,
        *,
        scheduler: Address[StepDone | StepFailed],
    ) -> None:
        super().__init__(mailbox)
        self._journal = journal
        self._device = device
        self._scheduler = scheduler

    def launch(self, plan: StepPlan) -> None:
        """Hand over a plan at once."""
        self._journal.note("executor", plan)
        try:
            self._device.launch(plan, self._scheduler)
        except Exception as error:
            self._mailbox.fail(error)  # ours, though it ends the Scheduler's turn
            raise

    def react(self, turn: Turn[StepPlan]) -> None:
        for envelope in turn.envelopes:
            self._device.launch(envelope.message, self._scheduler)
