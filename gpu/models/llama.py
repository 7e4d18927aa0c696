"""LlamaDecoder: the fast path for Llama-like models, on flat batches over paged keys and values.

Functional operations on bound weights, no modules and no hooks: on a small model the cost of a
call is a good part of the step. Query, key and value are one multiplication, gate and up another.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention import Attention, Scores
from ..inputs import StepInputs
from ..loading.weights import Weights
from .config import ModelConfig
from .linear import Linear
from .norm import RmsNorm
from .rotary import rotary_tables


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: RmsNorm
    qkv: Linear
    qk_norm: RmsNorm | None  # of each query and key head on its own
    attention_out: Linear
    mlp_norm: RmsNorm
    gate_up: Linear
    down: Linear
    scores: Scores


class LlamaDecoder:
    """Token ids and positions to logits; keys and values live in the step's attention."""

    def __init__(
        self, config: ModelConfig, weights: Weights, max_model_len: int, dtype: torch.dtype
    ) -> None:
        self._config = config
        self._embedding = weights.take(
            "model.embed_tokens.weight", config.vocab_size, config.hidden_size
        )
        self._layers = [_load_layer(config, weights, n) for n in range(config.num_layers)]
        self._norm = RmsNorm(weights.take("model.norm.weight", config.hidden_size), config.rms_eps)
        self._head = Linear(self._take_head(weights))
        weights.finish()
        self._cos, self._sin = rotary_tables(config.rope, config.head_dim, max_model_len, dtype)

    def _take_head(self, weights: Weights) -> Tensor:
        """The output matrix. A tied model shares its embedding, unless its files hold a head that
        differs: then that one counts, as it does in transformers."""
        config = self._config
        if config.tied_embeddings and "lm_head.weight" not in weights:
            return self._embedding
        return weights.take("lm_head.weight", config.vocab_size, config.hidden_size)

    def forward(self, inputs: StepInputs, attention: Attention) -> Tensor:
        """What the last layer says of each token.  # [tokens, hidden]"""
        config = self._config
        num_rotated = config.num_heads + config.num_kv_heads
        hidden = self._embedding.index_select(0, inputs.token_ids)  # [tokens, hidden]
        cos = self._cos.index_select(0, inputs.positions).unsqueeze(1)  # [tokens, 1, head_dim]
        sin = self._sin.index_select(0, inputs.positions).unsqueeze(1)
        for number, layer in enumerate(self._layers):
            x = layer.input_norm(hidden)
            heads = layer.qkv(x).view(len(x), -1, config.head_dim)
            rotated = heads[:, :num_rotated]
            if layer.qk_norm is not None:
                rotated = layer.qk_norm(rotated)
            rotated = _rotate(rotated, cos, sin)
            out = attention.attend(
                number,
                rotated[:, : config.num_heads],
                rotated[:, config.num_heads :],
                heads[:, num_rotated:],
                layer.scores,
            )
            hidden = layer.attention_out.add_to(hidden, out.reshape(len(x), -1))
            x = layer.mlp_norm(hidden)
            gate, up = layer.gate_up(x).chunk(2, dim=-1)
            hidden = layer.down.add_to(hidden, F.silu(gate).mul_(up))
        return hidden

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of some of those.  # [some, hidden] → [some, vocab]"""
        if not len(hidden):
            return hidden.new_empty((0, self._config.vocab_size))
        return self._head(self._norm(hidden))


def _load_layer(config: ModelConfig, weights: Weights, number: int) -> _Layer:
    prefix = f"model.layers.{number}."
    hidden, dim = config.hidden_size, config.head_dim
    heads = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
    inner = config.intermediate_size

    def fused(names: dict[str, int], has_bias: bool) -> Linear:
        weight = weights.take_joined({f"{prefix}{n}.weight": k for n, k in names.items()}, hidden)
        if not has_bias:
            return Linear(weight)
        return Linear(
            weight, weights.take_joined({f"{prefix}{n}.bias": k for n, k in names.items()})
        )

    def single(name: str, inputs: int, has_bias: bool) -> Linear:
        weight = weights.take(f"{prefix}{name}.weight", hidden, inputs)
        return Linear(weight, weights.take(f"{prefix}{name}.bias", hidden) if has_bias else None)

    def norm(name: str) -> RmsNorm:
        return RmsNorm(weights.take(f"{prefix}{name}.weight", hidden), config.rms_eps)

    qk_norm = None
    if config.qk_norm:
        q_norm = weights.take(f"{prefix}self_attn.q_norm.weight", dim)
        k_norm = weights.take(f"{prefix}self_attn.k_norm.weight", dim)
        per_head = [q_norm.expand(heads["q"], dim), k_norm.expand(heads["k"], dim)]
        qk_norm = RmsNorm(torch.cat(per_head), config.rms_eps)
    return _Layer(
        input_norm=norm("input_layernorm"),
        qkv=fused({f"self_attn.{n}_proj": heads[n] * dim for n in heads}, config.qkv_bias),
        qk_norm=qk_norm,
        attention_out=single("self_attn.o_proj", heads["q"] * dim, config.output_bias),
        mlp_norm=norm("post_attention_layernorm"),
        gate_up=fused({"mlp.gate_proj": inner, "mlp.up_proj": inner}, config.mlp_bias),
        down=single("mlp.down_proj", inner, config.mlp_bias),
        scores=Scores(scale=dim**-0.5, window=config.windows[number]),
    )


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding; the sines carry the sign of the swapped halves."""
    half = heads.shape[-1] // 2
    return torch.addcmul(heads * cos, heads.roll(half, dims=-1), sin)
