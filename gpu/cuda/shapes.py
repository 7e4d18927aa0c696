"""Named shapes with random weights: models to measure that need no files.

Weights are normal numbers made where they are used, the same for a seed on one kind of device. They
are never zeros, which multiply faster than anything else. What such a model says means nothing: its
logits are nearly flat, the worst case for sampling.
"""

import zlib
from collections.abc import Iterable

import torch
from torch import Tensor

from ...messages import ConfigError, Floats
from ..loading.weights import Weights
from ..models.config import ModelConfig, kv_layers
from ..models.decoder import Decoder
from ..models.llama import LlamaDecoder
from ..models.opening import OpenModel
from ..models.rope import RopeConfig

_DEVIATION = 0.02
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8_192,
}


def shape_named(name: str) -> ModelConfig:
    """Raises ConfigError for a name that is none of SHAPES."""
    if name not in SHAPES:
        raise ConfigError(f"{name!r} is no shape that is known; {', '.join(SHAPES)} are")
    return SHAPES[name]


def open_shape(config: ModelConfig, dtype: torch.dtype, *, seed: int = 0) -> OpenModel:
    """A model of this shape, as `open_model` gives one of files."""
    source = RandomWeights(config, seed)

    def build(max_model_len: int) -> Decoder:
        return LlamaDecoder(config, Weights(source, dtype), max_model_len, dtype)

    return OpenModel(
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        eos_token_ids=config.eos_token_ids,
        layers=kv_layers(config),
        build=build,
        fast=(config, source),
    )


class RandomWeights:
    """A source of weights that makes each up when it is asked for."""

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        self._shapes = weight_shapes(config)
        self._seed = seed
        self.source = f"random weights ({seed})"

    def names(self) -> Iterable[str]:
        return self._shapes.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def floats(self, name: str) -> Floats:
        out = torch.empty(self.shape(name))
        self.read(name, out)
        values: Floats = out.numpy()
        return values

    def read(self, name: str, out: Tensor) -> None:
        """Fill `out` on its own device: norms around 1, everything else around 0."""
        generator = torch.Generator(out.device)
        generator.manual_seed(zlib.crc32(f"{self._seed} {name}".encode()))
        mean = 1.0 if name.endswith("norm.weight") else 0.0
        out.normal_(mean, _DEVIATION, generator=generator)


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a model of this shape, by its Hugging Face name."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for number in range(config.num_layers):
        layer = _layer_shapes(config)
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    queries, kept = config.num_heads * dim, config.num_kv_heads * dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (kept, hidden),
        "self_attn.v_proj.weight": (kept, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.qk_norm:
        shapes |= {f"self_attn.{name}_norm.weight": (dim,) for name in "qk"}
    return shapes


def _shape(
    *,
    family: str,
    hidden: int,
    layers: int,
    heads: tuple[int, int],  # of queries, of keys
    inner: int,
    vocab: int,
    context: int,
    theta: float,
    dim: int = 128,
    tied: bool = False,
    eps: float = 1e-6,
    rope: dict[str, object] | None = None,
) -> ModelConfig:
    return ModelConfig(
        family=family,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=dim,
        intermediate_size=inner,
        rms_eps=eps,
        vocab_size=vocab,
        context_length=context,
        rope=RopeConfig.from_fields(rope or {}, theta=theta, max_positions=context),
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=family == "qwen3",
        tied_embeddings=tied,
        windows=(None,) * layers,
        eos_token_ids=frozenset(),  # answers have the length that is asked for
    )


def _qwen3(hidden: int, layers: int, heads: int, inner: int, *, tied: bool) -> ModelConfig:
    return _shape(
        family="qwen3",
        hidden=hidden,
        layers=layers,
        heads=(heads, 8),
        inner=inner,
        vocab=151_936,
        context=40_960,
        theta=1e6,
        tied=tied,
    )


def _llama3(
    hidden: int, layers: int, inner: int, *, dim: int, tied: bool, factor: float
) -> ModelConfig:
    return _shape(
        family="llama",
        hidden=hidden,
        layers=layers,
        heads=(32, 8),
        inner=inner,
        vocab=128_256,
        context=131_072,
        theta=500_000.0,
        dim=dim,
        tied=tied,
        eps=1e-5,
        rope={**_LLAMA3, "factor": factor},
    )


SHAPES = {
    "qwen3-0.6b": _qwen3(1_024, 28, 16, 3_072, tied=True),
    "qwen3-14b": _qwen3(5_120, 40, 40, 17_408, tied=False),
    "llama-3.2-1b": _llama3(2_048, 16, 8_192, dim=64, tied=True, factor=32.0),
    "llama-3.1-8b": _llama3(4_096, 32, 14_336, dim=128, tied=False, factor=8.0),
    # Small enough for a processor: what the commands try out there.
    "tiny": _shape(
        family="qwen3",
        hidden=32,
        layers=2,
        heads=(4, 2),
        inner=48,
        vocab=512,
        context=512,
        theta=1e4,
        dim=8,
        tied=True,
    ),
}
