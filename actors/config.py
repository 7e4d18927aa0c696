"""EngineConfig: everything an engine is started with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ..messages import ConfigError
from .config_checks import check_agreement, check_whole, is_number

DEFAULT_MODEL = "smollm2-135m"
Device = Literal["auto", "cpu", "cuda", "simulated"]
DType = Literal["auto", "float32", "bfloat16"]
Quantization = Literal["auto", "none", "int8", "int4"]
KVDType = Literal["auto", "fp8"]
GrammarBackend = Literal["llguidance", "xgrammar"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything an engine is started with. Raises ConfigError where the options make no sense."""

    model: str | Path = DEFAULT_MODEL  # a GGUF file, a Hugging Face folder, a short name, a hub id
    device: Device = "auto"  # auto: cuda where there is a GPU that runs the model, else cpu
    dtype: DType = "auto"  # auto: bfloat16 on a GPU and where the processor multiplies it natively
    quantization: Quantization = "auto"  # auto: GGUF weights as the file packs them, unless a dtype
    # is asked for or a GPU taken; none: unpacked to the dtype; int8, int4: what has more bits is
    # quantised
    kv_dtype: KVDType = "auto"  # auto: the dtype's; fp8: half as large as bfloat16, within a
    # sixteenth of each number, on GPUs of compute capability 8.9 or newer
    deterministic: bool = False  # logits have the same bits alone and in any batch: slower
    block_size: int = 16  # positions per KV block
    num_blocks: int | None = None
    kv_memory: int | None = None  # bytes of KV; used when num_blocks is None
    gpu_memory_fraction: float = 0.9  # of a GPU's memory, for weights, steps, graphs and KV
    graph_capture_s: float = 30.0  # seconds a GPU may take to capture its decode graphs; 0: none
    num_host_blocks: int | None = None  # blocks in host memory that preempted sequences move to
    swap_memory: int | None = None  # bytes for them, instead of their number; None: none
    max_model_len: int | None = None  # None: the model's context
    max_num_seqs: int = 64  # sequences that run at once
    max_num_batched_tokens: int | None = None  # token positions computed per step; None: what
    # suits the device: 128 to 512 on a processor, 2,048 elsewhere
    long_prefill_token_threshold: int | None = None  # cap on one prompt's part of a step while
    # others want to run; None: what the device takes in about 0.1 s
    steps_in_flight: int = 2
    prefix_caching: bool = True
    prefix_ttl: float | None = None  # seconds that cached content is kept unused; None: no limit
    watermark: float = 0.01  # share of the pool kept free when a sequence is admitted beside others
    ageing: float | None = None  # seconds of waiting that raise a request by one class; None: never
    max_waiting: int = 1024  # requests; one more is refused with EngineOverloaded
    grammar_backend: GrammarBackend = "llguidance"  # the library that follows structured output
    max_logprobs: int = 20  # likeliest tokens that a request may be told of at a position
    record: str | Path | None = None  # write every message here as it comes, for a replay
    record_failure: str | Path | None = None  # where the last messages are written, with masked
    # tokens, when an actor fails
    stats_socket: str | Path | None = None  # a unix socket that `engine-cli top` looks at
    check_invariants: bool = False  # assert the ledger after every message: slow, to find faults

    def __post_init__(self) -> None:
        """What one value alone can be, then what the values say together."""
        self._check_choices()
        self._check_numbers()
        check_agreement(self)

    def _check_choices(self) -> None:
        for name, choices in (
            ("device", get_args(Device)),
            ("dtype", ("auto", "float32", "bfloat16")),
            ("quantization", get_args(Quantization)),
            ("kv_dtype", get_args(KVDType)),
            ("grammar_backend", get_args(GrammarBackend)),
        ):
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(choices)}"
                )
        for name in ("deterministic", "prefix_caching", "check_invariants"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be True or False")

    def _check_numbers(self) -> None:
        for name in ("block_size", "max_num_seqs", "max_waiting"):
            check_whole(name, getattr(self, name))
        for name in (
            "num_blocks",
            "kv_memory",
            "max_model_len",
            "max_num_batched_tokens",
            "long_prefill_token_threshold",
        ):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name))
        for name in ("num_host_blocks", "swap_memory", "max_logprobs"):
            if getattr(self, name) not in (None, 0):
                check_whole(name, getattr(self, name))
        if isinstance(self.steps_in_flight, bool) or self.steps_in_flight not in (1, 2, 3, 4):
            raise ConfigError(f"steps_in_flight is {self.steps_in_flight!r}; it must be 1 to 4")
        for name in ("ageing", "prefix_ttl"):
            seconds = getattr(self, name)
            if seconds is not None and not (is_number(seconds) and 0 < seconds < float("inf")):
                raise ConfigError(f"{name} is {seconds!r}; it must be above 0 seconds, or None")
        fraction = self.gpu_memory_fraction
        if not is_number(fraction) or not 0 < fraction <= 1:
            raise ConfigError(
                f"gpu_memory_fraction is {fraction!r}; it must be above 0 and at most 1"
            )
        capture = self.graph_capture_s
        if not is_number(capture) or not 0 <= capture < float("inf"):
            raise ConfigError(f"graph_capture_s is {capture!r}; it must be seconds, or 0 for none")
        if not is_number(self.watermark) or not 0 <= self.watermark < 1:
            raise ConfigError(f"watermark is {self.watermark!r}; it must be from 0 to below 1")


def step_tokens(config: EngineConfig, suited: int) -> int:
    """Token positions of a step: as told, or what suits the device and the other options."""
    if config.max_num_batched_tokens is not None:
        return config.max_num_batched_tokens
    return max(suited, config.max_num_seqs, config.long_prefill_token_threshold or 0)
