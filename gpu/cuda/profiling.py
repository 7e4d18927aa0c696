"""What a step takes of a GPU's memory: one of the largest size, measured before KV is there."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..kernels.packed_linear import MOST_ROWS
from ..kernels.step_inputs import StepTensors
from ..models.config import ModelConfig, kv_layers
from ..options import DeviceOptions
from .decode_steps import MOST_CUT_ROWS
from .decoder import PagedDecoder, StepRows
from .graphs import GRAPH_BYTES, coarse_sizes, graph_sizes
from .kv_memory import KVMemory, kv_dtype_of
from .matrices import bits_of
from .memory import MemoryProfile, free_and_total, measure_work
from .ops import Ops
from .sampler import sample_padding
from .weights import DecoderWeights

_SLACK = 1.1  # what the allocator loses between pieces


def profile_memory(
    options: DeviceOptions,
    config: ModelConfig,
    weights: DecoderWeights,
    ops: Ops,
    *,
    context: int,
    weight_bytes: int,
) -> MemoryProfile:
    """Run a step of padding, which writes no KV and takes as much as any, and see what is left."""
    device = weights.embedding.device
    longest = options.max_model_len or context
    run = padding_step(options, config, weights, ops, longest)
    run()  # what happens only once is no part of it: compiling, workspaces of libraries
    work = int(measure_work(device, run) * _SLACK)
    tables = options.num_slots * 4 * (longest + 1 + longest // options.block_size)
    free, total = free_and_total(device)
    return MemoryProfile(
        total=total,
        free=free,
        weights=weight_bytes,
        work=work + tables,
        graphs=_graph_bytes(options, config, weights.embedding.dtype),
    )


def _graph_bytes(options: DeviceOptions, config: ModelConfig, dtype: torch.dtype) -> int:
    """Of graphs that compute rows, of those that share blocks and of those that sample, which have
    few kernels. All of them keep the most that one needs: logits, those that are looked through for
    the likeliest, and a matrix of few bits that is widened."""
    if options.graph_capture_s <= 0:
        return 0
    sizes = graph_sizes(options.num_slots // 2)
    kept = sizes[-1] * config.vocab_size
    if bits_of(options) is not None and sizes[-1] > MOST_ROWS:
        kept += max(config.vocab_size, 2 * config.intermediate_size) * config.hidden_size
    cuts = min(sizes[-1], MOST_CUT_ROWS) * config.vocab_size * 4
    few = 2 * len(sizes) * GRAPH_BYTES // 16
    many = (len(sizes) + len(coarse_sizes(sizes))) * GRAPH_BYTES
    return many + few + kept * dtype.itemsize + cuts


def padding_step(
    options: DeviceOptions, config: ModelConfig, weights: DecoderWeights, ops: Ops, longest: int
) -> Callable[[], Tensor]:
    """Computes and samples as many tokens as a step may have, all of them padding."""
    device = weights.embedding.device
    kv = KVMemory(
        kv_layers(config),
        num_blocks=1,
        block_size=options.block_size,
        dtype=kv_dtype_of(options, weights.embedding.dtype, device),
        device=device,
    )
    decoder = PagedDecoder(config, weights, kv, ops, longest)
    step = StepTensors.empty(options.max_num_batched_tokens, options.num_slots, device)
    step.token_slots.fill_(-1)
    step.slots.fill_(-1)
    table = torch.zeros((1, 1), dtype=torch.int32, device=device)
    samples = min(options.num_slots, options.max_num_batched_tokens)

    def run() -> Tensor:
        with torch.inference_mode():
            rows = StepRows(table, longest=options.max_num_batched_tokens)
            hidden = decoder.forward(step, rows)
            logits = decoder.logits(hidden[:samples])
            sample_padding(logits, ops)
            return logits

    return run
