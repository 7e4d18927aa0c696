"""Run a model's forward pass step by step, without a device, and collect its logits."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stepahead.gpu.binding import NATIVE, bind, make_kv
from stepahead.gpu.models.opening import open_model
from stepahead.gpu.slots import SlotTables

from .device_driver import make_plan, make_row

BLOCK_SIZE = 4

# Rows of each step as (sequence, start, length): chunks and single tokens mixed in one batch.
MIXED_STEPS: list[list[tuple[int, int, int]]] = [
    [(0, 0, 7)],
    [(0, 7, 5), (1, 0, 9)],
    [(0, 12, 1), (1, 9, 1), (2, 0, 20)],
    [(2, 20, 7), (0, 13, 1), (1, 10, 6)],
    [(1, 16, 1), (2, 27, 1), (0, 14, 1)],
    [(0, 15, 17), (1, 17, 1), (2, 28, 4)],
    [(1, 18, 14)],
]
LENGTH = 32  # of each of the three sequences


def random_sequences(vocab: int, count: int = 3, length: int = LENGTH) -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, vocab, length).tolist() for _ in range(count)]


def paged_logits(
    path: Path,
    sequences: Sequence[Sequence[int]],
    steps: Sequence[Sequence[tuple[int, int, int]]],
    *,
    generic: bool = False,
    dtype: str = "float32",
    native: bool = False,
    block_size: int = BLOCK_SIZE,
    bits: int = 8,
    deterministic: bool = False,
    shared: int = 0,
) -> dict[tuple[int, int], Tensor]:
    """Logits after the last token of every row, by (sequence, position), with scattered blocks, of
    which the first `shared` of every sequence are those of the first.

    It is torch's run, or the native decoder's.
    """
    model = open_model(path, dtype, generic=generic)
    longest = max(map(len, sequences))
    num_blocks = -(-longest // block_size)
    scattered = np.random.default_rng(5).permutation(num_blocks * len(sequences))
    tables = SlotTables(len(sequences), longest, block_size)
    kv = make_kv(
        model.layers,
        NATIVE if native else dtype,
        num_blocks=len(scattered),
        block_size=block_size,
    )
    for memory in (*kv.key_bytes, *kv.value_bytes):
        memory.fill(0xFF)  # NaN in every type: whatever a block held before must not matter
    blocks = scattered.reshape(-1, num_blocks)
    blocks[:, :shared] = blocks[0, :shared]
    new_rows = [
        make_row(slot, tokens, own.tolist())
        for slot, (tokens, own) in enumerate(zip(sequences, blocks, strict=True))
    ]
    logits: dict[tuple[int, int], Tensor] = {}
    with torch.inference_mode():
        bound = bind(model, longest, kv, bits=bits, deterministic=deterministic)
        for number, rows in enumerate(steps):
            plan = make_plan(number, [(*row, True) for row in rows], new_rows)
            new_rows = []
            tables.apply(plan)
            out = bound.logits(plan, tables)
            for row, (slot, start, length) in enumerate(rows):
                own = torch.from_numpy(out[row].copy())  # the next plan takes it
                logits[slot, start + length - 1] = own
        bound.close()
    return logits


def plain_logits(path: Path, sequences: Sequence[Sequence[int]]) -> Tensor:
    """The eager forward pass of transformers over whole sequences.  # [sequences, length, vocab]"""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        logits: Tensor = model.eval()(torch.tensor(sequences), use_cache=False).logits
    return logits


def worst_difference(logits: dict[tuple[int, int], Tensor], reference: Tensor) -> float:
    """The largest absolute difference to the reference over all rows."""
    return max(
        (row - reference[slot, position]).abs().max().item()
        for (slot, position), row in logits.items()
    )
