"""DecoderWeights: the matrices of a Llama-like model, fused as its decoder multiplies them."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from torch import Tensor

from ..loading.weights import Weights
from ..models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; matrices are [outputs, inputs]."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norms: tuple[Tensor, Tensor] | None  # of each query and key head on its own  # [dim]
    attention_out: Tensor
    attention_out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """A whole model; the head of a tied one is its embedding."""

    embedding: Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor  # [vocab, hidden]

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor, in an order that the shape of the model decides."""
        yield from (self.embedding, self.norm, self.head)
        for layer in self.layers:
            for field in fields(layer):
                value = getattr(layer, field.name)
                if value is not None:
                    yield from value if isinstance(value, tuple) else (value,)

    def copy_(self, others: "DecoderWeights") -> None:
        """Take over the numbers of weights of the same shape, where these are."""
        for own, other in zip(self.tensors(), others.tensors(), strict=True):
            own.copy_(other)


def load_decoder_weights(config: ModelConfig, weights: Weights) -> DecoderWeights:
    """Take a model's tensors. Raises ModelError where one is missing, misshapen or left over."""
    hidden, vocab = config.hidden_size, config.vocab_size
    embedding = weights.take("model.embed_tokens.weight", vocab, hidden)
    layers = tuple(_load_layer(config, weights, number) for number in range(config.num_layers))
    norm = weights.take("model.norm.weight", hidden)
    # A tied model shares its embedding, unless its files hold a head that differs.
    is_shared = config.tied_embeddings and "lm_head.weight" not in weights
    head = embedding if is_shared else weights.take("lm_head.weight", vocab, hidden)
    weights.finish()
    return DecoderWeights(embedding, layers, norm, head)


def _load_layer(config: ModelConfig, weights: Weights, number: int) -> LayerWeights:
    prefix = f"model.layers.{number}."
    hidden, dim, inner = config.hidden_size, config.head_dim, config.intermediate_size
    heads = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}

    def take(name: str, *shape: int) -> Tensor:
        return weights.take(prefix + name, *shape)

    def joined(names: dict[str, int], end: str, *rest: int) -> Tensor:
        sizes = {f"{prefix}{name}{end}": size for name, size in names.items()}
        return weights.take_joined(sizes, *rest)

    qkv = {f"self_attn.{name}_proj": count * dim for name, count in heads.items()}
    gate_up = {"mlp.gate_proj": inner, "mlp.up_proj": inner}
    qk_norms = None
    if config.qk_norm:
        qk_norms = take("self_attn.q_norm.weight", dim), take("self_attn.k_norm.weight", dim)
    return LayerWeights(
        input_norm=take("input_layernorm.weight", hidden),
        qkv=joined(qkv, ".weight", hidden),
        qkv_bias=joined(qkv, ".bias") if config.qkv_bias else None,
        qk_norms=qk_norms,
        attention_out=take("self_attn.o_proj.weight", hidden, heads["q"] * dim),
        attention_out_bias=take("self_attn.o_proj.bias", hidden) if config.output_bias else None,
        mlp_norm=take("post_attention_layernorm.weight", hidden),
        gate_up=joined(gate_up, ".weight", hidden),
        gate_up_bias=joined(gate_up, ".bias") if config.mlp_bias else None,
        down=take("mlp.down_proj.weight", hidden, inner),
        down_bias=take("mlp.down_proj.bias", hidden) if config.mlp_bias else None,
    )
