"""The Executor actor: hands the device its steps, in order."""

from ..gpu.device import Device
from ..messages import StepDone, StepFailed, StepPlan
from .actor import Actor, Address, Mailbox
from .journal import Turn


class Executor(Actor[StepPlan]):
    """Launches each step as it arrives; the device posts one result each, in order (rule 3)."""

    def __init__(
        self,
        mailbox: Mailbox[StepPlan],
        device: Device,
        *,
        scheduler: Address[StepDone | StepFailed],
    ) -> None:
        super().__init__(mailbox)
        self._device = device
        self._scheduler = scheduler

    def react(self, turn: Turn[StepPlan]) -> None:
        for envelope in turn.envelopes:
            self._device.launch(envelope.message, self._scheduler)
