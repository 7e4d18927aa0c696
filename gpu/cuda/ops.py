"""Ops: everything a step computes that is not plain torch, by kernels or by their references.

A decoder and a runner are written against the protocol. What they compute on a GPU by Triton's
kernels they compute anywhere by the references beside those, with the same calls.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from ..attention import Scores
from ..kernels.activation import silu_mul, silu_mul_reference
from ..kernels.adjust import (
    Wishes,
    adjust,
    adjust_reference,
    count_tokens,
    count_tokens_reference,
)
from ..kernels.attention_parts import PagedRows
from ..kernels.block_copy import BlockCopier, copy_blocks_reference
from ..kernels.cache_write import write_cache, write_cache_reference
from ..kernels.cuts import find_cuts, find_cuts_reference
from ..kernels.decode_inputs import decode_inputs, decode_inputs_reference
from ..kernels.gumbel import sample_gumbel, sample_gumbel_reference
from ..kernels.norm import add_rms_norm, add_rms_norm_reference
from ..kernels.record import record, record_reference
from ..kernels.row_updates import RowTables, update_rows, update_rows_reference
from ..kernels.step_inputs import StepTensors, step_inputs, step_inputs_reference
from .attention import attend, attend_reference
from .quantised import Matrix, linear, linear_reference

CopyBlocks: TypeAlias = Callable[[Tensor, Tensor], None]
"""Copies onto target blocks what source blocks hold, both [pairs] of int32; target -1: padding."""


class Ops(Protocol):
    """What a step calls; the functions of `gpu/kernels` say what each computes."""

    def update_rows(self, tables: RowTables, updates: Tensor, values: Tensor) -> None: ...

    def step_inputs(
        self,
        slots: Tensor,
        positions: Tensor,
        starts: Tensor,
        tokens: Tensor,
        num_tokens: int,
        out: StepTensors,
    ) -> None: ...

    def decode_inputs(
        self, sent: Tensor, tokens: Tensor, block_table: Tensor, out: StepTensors
    ) -> None: ...

    def record(self, sampled: Tensor, slots: Tensor, positions: Tensor, tokens: Tensor) -> None: ...

    def block_copier(
        self,
        targets: Sequence[Tensor],
        sources: Sequence[Tensor],
        *,
        block_size: int,
        device: torch.device,
    ) -> CopyBlocks:
        """Looks the memories up once; they must stay where they are. Raises ValueError where their
        blocks cannot be copied."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def silu_mul(self, gate_up: Tensor) -> Tensor: ...

    def linear(self, x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor: ...

    def write_cache(
        self,
        qkv: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        positions: Tensor,
        slots: Tensor,
        block_table: Tensor,
        block_size: int,
        cos: Tensor,
        sin: Tensor,
        norms: tuple[Tensor, Tensor] | None,
        eps: float,
    ) -> Tensor: ...

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, rows: PagedRows, scores: Scores
    ) -> Tensor: ...

    def count_tokens(self, slots: Tensor, positions: Tensor, wishes: Wishes) -> None: ...

    def adjust(
        self, logits: Tensor, slots: Tensor, positions: Tensor, wishes: Wishes
    ) -> Tensor: ...

    def find_cuts(
        self, logits: Tensor, slots: Tensor, lines: Tensor, *, has_top: bool, has_top_p: bool
    ) -> Tensor: ...

    def draw(
        self,
        logits: Tensor,
        *,
        slots: Tensor,
        positions: Tensor,
        temperature: Tensor,
        seed: Tensor,
        index: Tensor,
        cuts: Tensor | None = None,
    ) -> Tensor: ...


class TritonOps:
    """By kernels; products with plain matrices by torch."""

    update_rows = staticmethod(update_rows)
    step_inputs = staticmethod(step_inputs)
    decode_inputs = staticmethod(decode_inputs)
    record = staticmethod(record)
    add_rms_norm = staticmethod(add_rms_norm)
    silu_mul = staticmethod(silu_mul)
    linear = staticmethod(linear)
    write_cache = staticmethod(write_cache)
    count_tokens = staticmethod(count_tokens)
    adjust = staticmethod(adjust)
    find_cuts = staticmethod(find_cuts)
    draw = staticmethod(sample_gumbel)
    attend = staticmethod(attend)

    @staticmethod
    def block_copier(
        targets: Sequence[Tensor],
        sources: Sequence[Tensor],
        *,
        block_size: int,
        device: torch.device,
    ) -> CopyBlocks:
        return BlockCopier(targets, sources, block_size=block_size).to(device).copy


class TorchOps:
    """By the references, on the CPU."""

    update_rows = staticmethod(update_rows_reference)
    step_inputs = staticmethod(step_inputs_reference)
    decode_inputs = staticmethod(decode_inputs_reference)
    record = staticmethod(record_reference)
    add_rms_norm = staticmethod(add_rms_norm_reference)
    silu_mul = staticmethod(silu_mul_reference)
    linear = staticmethod(linear_reference)
    write_cache = staticmethod(write_cache_reference)
    attend = staticmethod(attend_reference)
    count_tokens = staticmethod(count_tokens_reference)
    adjust = staticmethod(adjust_reference)
    find_cuts = staticmethod(find_cuts_reference)
    draw = staticmethod(sample_gumbel_reference)

    @staticmethod
    def block_copier(
        targets: Sequence[Tensor],
        sources: Sequence[Tensor],
        *,
        block_size: int,
        device: torch.device,
    ) -> CopyBlocks:
        def copy(blocks: Tensor, others: Tensor) -> None:
            copy_blocks_reference(targets, sources, blocks, others, block_size=block_size)

        return copy
