"""ModelConfig: the shape of a Llama-like decoder, from a config.json or a GGUF file's metadata."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...messages import ModelError
from ..kv import LayerShape
from .rope import RopeConfig

Fields = Mapping[str, object]

MAX_LAYERS = 4096  # more is a corrupt file and not a model
FAST_FAMILIES = ("llama", "qwen2", "qwen3", "mistral")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What the fast decoder has to know of a model."""

    family: str  # one of FAST_FAMILIES
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_eps: float
    vocab_size: int
    context_length: int  # positions the model was made for
    rope: RopeConfig
    qkv_bias: bool
    output_bias: bool  # of attention
    mlp_bias: bool
    qk_norm: bool
    tied_embeddings: bool  # the head is the embedding, where the files hold no other
    windows: tuple[int | None, ...]  # per layer: positions a token sees
    eos_token_ids: frozenset[int]


def kv_layers(config: ModelConfig) -> tuple[LayerShape, ...]:
    """What each layer keeps per position."""
    shape = LayerShape(config.num_kv_heads, config.head_dim, config.head_dim)
    return (shape,) * config.num_layers


def read_config(folder: Path) -> Fields:
    """A Hugging Face folder's config.json as plain values."""
    return _read_json(folder / "config.json")


def _read_json(path: Path) -> Fields:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(fields, dict):
        raise ModelError(f"{path} holds {type(fields).__name__}, a JSON object was expected")
    return fields


def eos_of_folder(folder: Path, fields: Fields) -> frozenset[int]:
    """The ids that end an answer: those of config.json and generation_config.json together."""
    ids = _ids(fields.get("eos_token_id"))
    generation = folder / "generation_config.json"
    if generation.is_file():
        ids |= _ids(_read_json(generation).get("eos_token_id"))
    return ids


def _ids(value: object) -> frozenset[int]:
    values = value if isinstance(value, list) else [value]
    return frozenset(v for v in values if isinstance(v, int) and not isinstance(v, bool))


def has_fast_path(fields: Fields) -> bool:
    """Whether the fast decoder computes what this config.json describes."""
    return (
        fields.get("model_type") in FAST_FAMILIES
        and fields.get("hidden_act", "silu") == "silu"
        and fields.get("quantization_config") is None
        and not any(isinstance(v, dict) for v in _rope_fields(fields).values())
        and _rope_fields(fields).get("partial_rotary_factor", 1.0) == 1.0
    )


def _rope_fields(fields: Fields) -> Fields:
    for name in ("rope_parameters", "rope_scaling"):
        value = fields.get(name)
        if isinstance(value, dict):
            return value
    return {}


def config_of_folder(folder: Path, fields: Fields) -> ModelConfig:
    """Read what a Hugging Face folder's configuration says, with that family's defaults."""
    read = FieldReader(fields, f"{folder}/config.json")
    family = str(fields["model_type"])
    hidden_size, num_heads = read.count("hidden_size"), read.count("num_attention_heads")
    num_layers = read.count("num_hidden_layers", most=MAX_LAYERS)
    attention_bias = read.flag("attention_bias", False) and family in ("llama", "qwen3")
    context = read.count("max_position_embeddings")
    theta = read.number("rope_theta", 10_000.0)
    rope = RopeConfig.from_fields(
        _rope_fields(fields),
        theta=theta,
        max_positions=context,
        original=fields.get("original_max_position_embeddings"),
    )
    default_dim = 128 if family == "qwen3" else hidden_size // num_heads
    return ModelConfig(
        family=family,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=read.count("num_key_value_heads", num_heads),
        head_dim=read.count("head_dim", default_dim),
        intermediate_size=read.count("intermediate_size"),
        rms_eps=read.number("rms_norm_eps", 1e-6),
        vocab_size=read.count("vocab_size"),
        context_length=rope.context_length,
        rope=rope,
        qkv_bias=attention_bias or family == "qwen2",
        output_bias=attention_bias,
        mlp_bias=read.flag("mlp_bias", False) and family == "llama",
        qk_norm=family == "qwen3",
        tied_embeddings=read.flag("tie_word_embeddings", False),
        windows=_windows(read, family, num_layers),
        eos_token_ids=eos_of_folder(folder, fields),
    )


def _windows(read: "FieldReader", family: str, num_layers: int) -> tuple[int | None, ...]:
    if family == "llama":
        return (None,) * num_layers
    if family == "mistral":
        if read.fields.get("sliding_window", 4096) is None:
            return (None,) * num_layers
        return (read.count("sliding_window", 4096),) * num_layers
    if not read.flag("use_sliding_window", False) or read.fields.get("sliding_window", 0) is None:
        return (None,) * num_layers
    window = read.count("sliding_window", 4096)
    kinds = read.fields.get("layer_types")
    if isinstance(kinds, list):
        slides = [kind == "sliding_attention" for kind in kinds]
    else:
        first = read.count("max_window_layers", 28, least=0)
        slides = [layer >= first for layer in range(num_layers)]
    if len(slides) != num_layers:
        raise ModelError(f"{read.source}: layer_types names {len(slides)} of {num_layers} layers")
    return tuple(window if slide else None for slide in slides)


class FieldReader:
    """Typed look-ups in a configuration; what is missing or wrong is named in a ModelError."""

    def __init__(self, fields: Fields, source: str) -> None:
        self.fields = fields
        self.source = source

    def count(
        self, name: str, default: int | None = None, *, least: int = 1, most: int | None = None
    ) -> int:
        value = self.fields.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._wrong(name, f"a whole number of at least {least}")
        if most is not None and value > most:
            raise self._wrong(name, f"at most {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.fields.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(name, "a number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.fields.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def _wrong(self, name: str, right: str) -> ModelError:
        if self.fields.get(name) is None:
            return ModelError(f"{self.source} lacks {name}; it must be {right}")
        return ModelError(f"{self.source}: {name} is {self.fields[name]!r}; it must be {right}")
