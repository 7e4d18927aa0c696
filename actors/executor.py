"""The Executor actor: hands the device its steps, and the masks of held rows, in order.

A plan reaches the device in the Scheduler's own turn: it is numbered like every other message, but
does not wait for the event loop, which may have hundreds of readers to serve first.
"""

from typing import TypeAlias, assert_never

from ..gpu.device import Device, HoldsSampling, ReloadableDevice
from ..messages import LoadWeights, SampleRows, StepDone, StepFailed, StepPlan, WeightsLoaded
from .actor import Actor, Address, Mailbox
from .journal import Journal, Turn

ExecutorMessage: TypeAlias = StepPlan | SampleRows | LoadWeights


class Executor(Actor[ExecutorMessage]):
    """Launches each step as it arrives; the device posts one result each, in order (rule 3)."""

    def __init__(
        self,
        mailbox: Mailbox[ExecutorMessage],
        journal: Journal,
        device: Device,
        *,
        scheduler: Address[StepDone | StepFailed | WeightsLoaded],
        control: Address[WeightsLoaded],
    ) -> None:
        super().__init__(mailbox)
        self._journal = journal
        self._device = device
        self._scheduler = scheduler
        self._control = control

    def take(self, message: ExecutorMessage) -> None:
        """To the device at once: a plan, masks for its held rows, or the wish for other weights."""
        self._journal.note("executor", message)
        try:
            self._hand_over(message)
        except Exception as error:
            self._mailbox.fail(error)  # ours, though it ends the Scheduler's turn
            raise

    def react(self, turn: Turn[ExecutorMessage]) -> None:
        for envelope in turn.envelopes:
            self._hand_over(envelope.message)

    def _hand_over(self, message: ExecutorMessage) -> None:
        match message:
            case StepPlan():
                self._device.launch(message, self._scheduler)
            case SampleRows():
                assert isinstance(self._device, HoldsSampling), "no row of this device is held"
                self._device.sample(message)
            case LoadWeights():
                assert isinstance(self._device, ReloadableDevice), "refused before anybody was told"
                self._device.load_weights(message.source, self._loaded)
            case _:
                assert_never(message)

    def _loaded(self, loaded: WeightsLoaded) -> None:
        self._scheduler(loaded)
        self._control(loaded)
