"""PagedDecoder: a Llama-like model over paged keys and values, on flat batches of tokens.

It takes nothing from the host but sizes, so a graph can be captured over it and replayed for any
step of that size. Query, key and value are one matrix product, gate and up another; a layer's
residual addition and the norm behind it are one pass.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention import Scores
from ..kernels.attention_parts import PagedRows, SharedRuns
from ..kernels.step_inputs import StepTensors
from ..models.config import ModelConfig
from ..models.rotary import rotary_tables
from .kv_memory import KVMemory
from .ops import Ops
from .weights import DecoderWeights, LayerWeights


@dataclass(frozen=True, slots=True)
class StepRows:
    """What attention has to know of a step beside its tensors."""

    block_table: Tensor  # [slots, blocks] of int32
    longest: int  # tokens that no row of the step has more of
    has_singles: bool = False  # whether beside longer rows there are some of one token
    shared: SharedRuns | None = None  # rows of one token that read the same leading blocks


class PagedDecoder:
    """Steps to what the model says of their tokens; writes their keys and values on the way."""

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        kv: KVMemory,
        ops: Ops,
        max_model_len: int,
    ) -> None:
        self.config = config
        self.weights = weights
        self._kv = kv
        self._ops = ops
        dtype, device = weights.embedding.dtype, weights.embedding.device
        cos, sin = rotary_tables(config.rope, config.head_dim, max_model_len, dtype)
        self._cos, self._sin = cos.to(device), sin.to(device)
        self._scores = [
            Scores(scale=config.head_dim**-0.5, window=window) for window in config.windows
        ]

    def forward(self, step: StepTensors, rows: StepRows) -> Tensor:
        """What the model says of each token, normed for `logits`; of padding anything.
        # [tokens, hidden]"""
        ops, eps = self._ops, self.config.rms_eps
        x = self.weights.embedding.index_select(0, step.token_ids)
        residual = torch.zeros_like(x)
        paged = PagedRows(
            step.starts,
            step.lengths,
            step.slots,
            rows.block_table,
            self._kv.block_size,
            rows.longest,
            has_singles=rows.has_singles,
            shared=rows.shared,
        )
        for number, layer in enumerate(self.weights.layers):
            x = ops.add_rms_norm(x, residual, layer.input_norm, eps)
            x = self._attention(number, layer, x, step, paged)
            x = ops.add_rms_norm(x, residual, layer.mlp_norm, eps)
            gate_up = ops.linear(x, layer.gate_up, layer.gate_up_bias)
            x = ops.linear(ops.silu_mul(gate_up), layer.down, layer.down_bias)
        return ops.add_rms_norm(x, residual, self.weights.norm, eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """[some, hidden] of what `forward` gave → [some, vocab]."""
        return self._ops.linear(hidden, self.weights.head)

    def _attention(
        self, number: int, layer: LayerWeights, x: Tensor, step: StepTensors, rows: PagedRows
    ) -> Tensor:
        """Every row's keys and values are written before any row attends: a row may read blocks
        that another row of the step writes."""
        ops, keys, values = self._ops, self._kv.keys[number], self._kv.values[number]
        query = ops.write_cache(
            ops.linear(x, layer.qkv, layer.qkv_bias),
            keys,
            values,
            positions=step.positions,
            slots=step.token_slots,
            block_table=rows.block_table,
            block_size=rows.block_size,
            cos=self._cos,
            sin=self._sin,
            norms=layer.qk_norms,
            eps=self.config.rms_eps,
        )
        out = ops.attend(query, keys, values, rows, self._scores[number])
        return ops.linear(out.view(len(x), -1), layer.attention_out, layer.attention_out_bias)
