"""Cards: what a step costs on known hardware and how much KV fits beside a model.

Rates are those of the makers' data sheets (dense bf16) times the shares that a well-made engine
reaches. Attention's own arithmetic is left out, so very long prompts look cheaper than they are.
"""

import math
from dataclasses import dataclass

from ..messages import ConfigError
from .simulated import StepTime

BANDWIDTH_SHARE = 0.90  # of the data sheet's rates, reached while reading weights and KV
FLOPS_SHARE = 0.80  # of the data sheet's rate, reached in large matrix products
MEMORY_SHARE = 0.90  # of the memory, for weights and KV; the rest is work space


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a data sheet says of one device."""

    name: str
    bandwidth: float  # bytes per second
    flops_rate: float  # bf16 without sparsity, per second
    memory: float  # bytes
    host_bandwidth: float  # bytes per second to the host's memory, each way


CARDS = {
    card.name: card
    for card in (
        # SXM, the A100 with 80 GB; to the host PCIe 5.0 and 4.0 with 16 lanes.
        Card(name="h200", bandwidth=4.8e12, flops_rate=989e12, memory=141e9, host_bandwidth=64e9),
        Card(name="h100", bandwidth=3.35e12, flops_rate=989e12, memory=80e9, host_bandwidth=64e9),
        Card(name="a100", bandwidth=2.039e12, flops_rate=312e12, memory=80e9, host_bandwidth=32e9),
        # Eight channels of DDR5-4800; 56 cores that do 2,048 bf16 operations a cycle at 2 GHz. A
        # block that is moved is read and written in the same memory.
        Card(
            name="cpu", bandwidth=0.307e12, flops_rate=229e12, memory=256e9, host_bandwidth=0.153e12
        ),
    )
}


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A dense decoder in 16 bits, known by its number of parameters alone."""

    billions: float = 8.0

    def __post_init__(self) -> None:
        if not 0 < self.billions < 1e5:
            raise ConfigError(
                f"the model size is {self.billions!r}; it must be above 0 (billions of parameters)"
            )

    @property
    def memory(self) -> float:
        """Bytes of weights."""
        return 2e9 * self.billions

    @property
    def bytes_per_step(self) -> float:
        """Weights that a step reads: all but the embedding table, a sixteenth at 8 billion."""
        return self.memory * 15 / 16

    @property
    def flops_per_token(self) -> float:
        """A multiplication and an addition per weight that is read."""
        return self.bytes_per_step

    @property
    def kv_bytes_per_token(self) -> float:
        """128 KiB at 8 billion (32 layers, 8 KV heads of 128); depth grows like the root."""
        return 131_072 * math.sqrt(self.billions / 8)


def step_time(card: Card, model: ModelSize) -> StepTime:
    """The roofline of a model on a card."""
    return StepTime(
        weight_bytes=model.bytes_per_step,
        kv_bytes_per_token=model.kv_bytes_per_token,
        flops_per_token=model.flops_per_token,
        bandwidth=card.bandwidth * BANDWIDTH_SHARE,
        flops_rate=card.flops_rate * FLOPS_SHARE,
        host_bandwidth=card.host_bandwidth * BANDWIDTH_SHARE,
    )


def blocks_beside(card: Card, model: ModelSize, block_size: int) -> int:
    """KV blocks that fit beside the weights. Raises ConfigError where there is no room."""
    room = card.memory * MEMORY_SHARE - model.memory
    num_blocks = int(room / (model.kv_bytes_per_token * block_size))
    if num_blocks < 1:
        raise ConfigError(
            f"a model of {model.billions:g} billion parameters takes {model.memory / 1e9:g} GB, "
            f"and {card.name} has {card.memory / 1e9:g} GB; give a smaller model size, "
            "or say how many KV blocks there are"
        )
    return num_blocks
