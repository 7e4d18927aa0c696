"""A device that several engines use one after the other: closing an engine leaves it open."""

from ...gpu.cuda.device import CudaDevice
from ...gpu.device import DeviceFacts, StepAddress
from ...messages import SampleRows, StepPlan


class LentDevice:
    """Everything goes to the device but the end."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    @property
    def facts(self) -> DeviceFacts:
        return self._device.facts

    def launch(self, plan: StepPlan, done: StepAddress) -> None:
        self._device.launch(plan, done)

    def sample(self, masks: SampleRows) -> None:
        self._device.sample(masks)

    def close(self) -> None:
        """It is the lender's to close."""
