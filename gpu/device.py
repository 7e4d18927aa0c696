"""The device seam: what every device does, whatever it computes with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from ..messages import SampleRows, StepDone, StepFailed, StepPlan, WeightsLoaded
from .host import NO_HOST_MEMORY, HostMemory

LoadedAddress: TypeAlias = Callable[[WeightsLoaded], None]
StepAddress: TypeAlias = Callable[[StepDone | StepFailed], None]


STEP_TOKENS = 2048  # what a device is made for, unless it knows better


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """What was found out while a device was set up."""

    model: str  # short name for logs
    device: str  # cpu | cuda | simulated
    dtype: str
    vocab_size: int
    max_model_len: int  # positions per sequence: the smallest of model, option and pool
    block_size: int
    num_blocks: int
    eos_token_ids: frozenset[int]  # union of configuration and generation configuration
    step_tokens: int = STEP_TOKENS  # token positions that a step computes at most, unless told
    fair_chunk: int | None = None  # positions of one prompt that a step takes in about 0.1 s
    doubling_context: int | None = None  # positions behind which one more costs twice as much
    host: HostMemory = NO_HOST_MEMORY  # that blocks can be moved to
    logits_processors: frozenset[str] = frozenset()  # names that requests may call
    num_graphs: int = 0  # decode steps that were captured: what else there is runs eagerly
    capture_s: float = 0.0  # seconds that took


class Device(Protocol):
    """Runs steps in order. The device owns its threads and a slot table of row states."""

    @property
    def facts(self) -> DeviceFacts: ...

    def launch(self, plan: StepPlan, done: StepAddress) -> None:
        """Queue a step and return at once; `done` is posted one result per step, in step order,
        on the thread of the event loop."""
        ...

    def close(self) -> None:
        """Finish or drop what is queued, stop every thread and release memory. Idempotent."""
        ...


@runtime_checkable
class ReloadableDevice(Protocol):
    """A device that can load other weights of the same shape while it lives."""

    def load_weights(self, source: str, done: LoadedAddress) -> None:
        """Load and return at once; `done` is posted on the thread of the event loop. No step is in
        flight meanwhile. Weights that do not fit change nothing; KV is not cleared."""
        ...


@runtime_checkable
class HoldsSampling(Protocol):
    """A device that can compute a row first and sample it when its mask comes."""

    def sample(self, masks: SampleRows) -> None:
        """Masks for held rows of a launched step, whose result is posted when all its rows are
        sampled. What is held in a step that was answered already is passed over."""
        ...
