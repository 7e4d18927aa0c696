"""ModelConfig from the metadata of a GGUF file."""

from ...messages import ModelError
from ..loading.gguf_file import GgufFile
from .config import MAX_LAYERS, FieldReader, ModelConfig
from .rope import RopeConfig

GGUF_FAMILIES = ("llama", "qwen2", "qwen3")  # Mistral's files call themselves llama

_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def config_of_gguf(file: GgufFile) -> ModelConfig:
    """Read the shape of a model. Raises ModelError where the fast decoder does not fit it."""
    family = file.metadata.get("general.architecture")
    if family not in GGUF_FAMILIES:
        raise ModelError(
            f"{file.path} has architecture {family!r}; GGUF files of "
            f"{', '.join(GGUF_FAMILIES)} can be run"
        )
    prefix = f"{family}."
    fields = {k.removeprefix(prefix): v for k, v in file.metadata.items() if k.startswith(prefix)}
    read = FieldReader(fields, str(file.path))
    if fields.get("expert_count"):
        raise ModelError(f"{file.path} is a mixture of experts, which cannot be run from GGUF")
    hidden_size, num_heads = read.count("embedding_length"), read.count("attention.head_count")
    num_layers = read.count("block_count", most=MAX_LAYERS)
    head_dim = read.count("attention.key_length", hidden_size // num_heads)
    _require_equal(file, "value_length", read.count("attention.value_length", head_dim), head_dim)
    _require_equal(
        file, "rope.dimension_count", read.count("rope.dimension_count", head_dim), head_dim
    )
    rope = _rope(file, read)
    window = fields.get("attention.sliding_window") or None
    return ModelConfig(
        family=str(family),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=read.count("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        intermediate_size=read.count("feed_forward_length"),
        rms_eps=read.number("attention.layer_norm_rms_epsilon", 1e-6),
        vocab_size=_vocab_size(file),
        context_length=rope.context_length,
        rope=rope,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_down.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        tied_embeddings="output.weight" not in file.tensors,
        windows=(window if isinstance(window, int) else None,) * num_layers,
        eos_token_ids=_eos(file),
    )


def _require_equal(file: GgufFile, name: str, given: int, expected: int) -> None:
    if given != expected:
        raise ModelError(
            f"{file.path}: {name} is {given}, only the head size {expected} can be run"
        )


def _rope(file: GgufFile, read: FieldReader) -> RopeConfig:
    fields = read.fields
    names = {
        "rope.scaling.factor": "factor",
        "rope.scaling.original_context_length": "original_max_position_embeddings",
        "rope.scaling.yarn_beta_fast": "beta_fast",
        "rope.scaling.yarn_beta_slow": "beta_slow",
        "rope.scaling.attn_factor": "attention_factor",
    }
    rope: dict[str, object] = {new: fields[old] for old, new in names.items() if old in fields}
    kind = fields.get("rope.scaling.type", "none")
    rope["rope_type"] = "default" if kind == "none" else kind
    if "rope_factors_long.weight" in file.tensors:
        rope["rope_type"] = "longrope"
        rope["long_factor"] = file.tensors["rope_factors_long.weight"].load().tolist()
        short = file.tensors.get("rope_factors_short.weight")
        if short is None:
            raise ModelError(f"{file.path} lacks tensor rope_factors_short.weight")
        rope["short_factor"] = short.load().tolist()
    divisors = file.tensors.get("rope_freqs.weight")
    return RopeConfig.from_fields(
        rope,
        theta=read.number("rope.freq_base", 10_000.0),
        max_positions=read.count("context_length"),
        divisors=None if divisors is None else tuple(divisors.load().tolist()),
    )


def _vocab_size(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(f"{file.path} lacks tensor token_embd.weight")
    return embedding.shape[0]


def _eos(file: GgufFile) -> frozenset[int]:
    values = (file.metadata.get(f"tokenizer.ggml.{key}") for key in _EOS_KEYS)
    return frozenset(value for value in values if isinstance(value, int))
