"""DecoderWeights: the matrices of a Llama-like model, fused as its decoder multiplies them."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from torch import Tensor

from ...messages import ModelError
from ..loading.weights import Weights
from ..models.config import ModelConfig
from .matrices import Matrices
from .quantised import Matrix, parts_of


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; matrices are [outputs, inputs]."""

    input_norm: Tensor
    qkv: Matrix
    qkv_bias: Tensor | None
    qk_norms: tuple[Tensor, Tensor] | None  # of each query and key head on its own  # [dim]
    attention_out: Matrix
    attention_out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Matrix
    gate_up_bias: Tensor | None
    down: Matrix
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """A whole model; the head of a tied one is its embedding."""

    embedding: Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Matrix  # [vocab, hidden]
    bits: int | None  # that were asked for; None: those of the dtype

    @property
    def shares_head(self) -> bool:
        """Whether the head is the embedding."""
        return self.head is self.embedding

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor, in an order that the shape of the model decides."""
        yield from (self.embedding, self.norm, *parts_of(self.head))
        for layer in self.layers:
            for field in fields(layer):
                value = getattr(layer, field.name)
                if value is not None:
                    yield from value if isinstance(value, tuple) else parts_of(value)

    def copy_(self, others: "DecoderWeights") -> None:
        """Take over the numbers of weights of the same shape, where these are. Raises ModelError,
        and changes nothing, where matrices are packed otherwise."""
        own, other = list(self.tensors()), list(others.tensors())
        if [(t.shape, t.dtype) for t in own] != [(t.shape, t.dtype) for t in other]:
            raise ModelError(
                "matrices are packed in other types than those of the model that runs; on a GPU "
                "weights are reloaded only where they were"
            )
        for into, numbers in zip(own, other, strict=True):
            into.copy_(numbers)


def load_decoder_weights(
    config: ModelConfig, weights: Weights, *, bits: int | None = None
) -> DecoderWeights:
    """Take a model's tensors, matrices in 8 or 4 bits where that is asked for. Raises ModelError
    where one is missing, misshapen or left over."""
    hidden, vocab = config.hidden_size, config.vocab_size
    matrices = Matrices(weights, bits=bits, head_dim=config.head_dim)
    embedding = weights.take("model.embed_tokens.weight", vocab, hidden)
    layers = tuple(
        _load_layer(config, weights, matrices, number) for number in range(config.num_layers)
    )
    norm = weights.take("model.norm.weight", hidden)
    # A tied model shares its embedding, unless its files hold a head that differs.
    is_shared = config.tied_embeddings and "lm_head.weight" not in weights
    if is_shared:
        head = matrices.tied_head(embedding)
    else:
        head = matrices.take_head("lm_head.weight", vocab, hidden)
    weights.finish()
    return DecoderWeights(embedding, layers, norm, head, bits)


def _load_layer(
    config: ModelConfig, weights: Weights, matrices: Matrices, number: int
) -> LayerWeights:
    prefix = f"model.layers.{number}."
    hidden, dim, inner = config.hidden_size, config.head_dim, config.intermediate_size
    heads = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}

    def take(name: str, *shape: int) -> Tensor:
        return weights.take(prefix + name, *shape)

    def biases(names: dict[str, int]) -> Tensor:
        return weights.take_joined({f"{prefix}{n}.bias": size for n, size in names.items()})

    def matrix(names: dict[str, int], cols: int) -> Matrix:
        return matrices.take({f"{prefix}{n}.weight": size for n, size in names.items()}, cols)

    qkv = {f"self_attn.{name}_proj": count * dim for name, count in heads.items()}
    gate_up = {"mlp.gate_proj": inner, "mlp.up_proj": inner}
    qk_norms = None
    if config.qk_norm:
        qk_norms = take("self_attn.q_norm.weight", dim), take("self_attn.k_norm.weight", dim)
    return LayerWeights(
        input_norm=take("input_layernorm.weight", hidden),
        qkv=matrix(qkv, hidden),
        qkv_bias=biases(qkv) if config.qkv_bias else None,
        qk_norms=qk_norms,
        attention_out=matrix({"self_attn.o_proj": hidden}, heads["q"] * dim),
        attention_out_bias=take("self_attn.o_proj.bias", hidden) if config.output_bias else None,
        mlp_norm=take("post_attention_layernorm.weight", hidden),
        gate_up=matrix(gate_up, hidden),
        gate_up_bias=biases(gate_up) if config.mlp_bias else None,
        down=matrix({"mlp.down_proj": hidden}, inner),
        down_bias=take("mlp.down_proj.bias", hidden) if config.mlp_bias else None,
    )
