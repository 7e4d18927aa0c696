"""What a device is opened with."""

from dataclasses import dataclass
from typing import Literal

DType = Literal["auto", "float32", "bfloat16"]
Quantization = Literal["auto", "none", "int8", "int4"]
KVDType = Literal["auto", "fp8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """What a device is opened with; what has to be found out comes back as DeviceFacts."""

    model: str  # a path, a known short name or a hub id
    dtype: DType = "auto"
    quantization: Quantization = "auto"  # auto: GGUF weights as they are, where that can be done;
    # int8 and int4: whatever has more bits is quantised, in groups of 32. On a GPU auto is none,
    # and int8 has a scale for each row
    kv_dtype: KVDType = "auto"  # what keys and values are kept in; fp8: e4m3, on GPUs that have it
    block_size: int = 16  # positions per KV block
    num_blocks: int | None = None
    kv_memory: int | None = None  # bytes for KV; used when num_blocks is None
    gpu_memory_fraction: float = 0.9  # of a GPU's memory, for weights, steps, graphs and KV
    graph_capture_s: float = 30.0  # seconds a GPU may take to capture its decode graphs; 0: none
    num_host_blocks: int | None = None
    swap_memory: int | None = None  # bytes for host blocks, instead of their number
    max_model_len: int | None = None
    num_slots: int = 128  # rows of the slot table
    max_num_batched_tokens: int = 2048  # token positions per step, at most
    deterministic: bool = False  # logits have the same bits alone and in any batch
    generic: bool = False  # run through transformers even where a fast path exists
