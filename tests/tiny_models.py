"""Tiny models with random weights, made on the spot in Hugging Face folders and GGUF files."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

VOCAB = 96

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-wide-heads": ("llama", {"hidden_size": 48, "head_dim": 24}),
    "llama-narrow-heads": ("llama", {"head_dim": 10}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1}),
    "qwen2": ("qwen2", {}),
    "qwen2-window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3-biases": ("qwen3", {"head_dim": 8, "attention_bias": True}),
    "mistral-window": ("mistral", {"sliding_window": 6}),
    "mistral-full": ("mistral", {"sliding_window": None}),
    "rope-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0}}),
    "rope-dynamic": (
        "llama",
        {
            "max_position_embeddings": 16,
            "rope_parameters": {"rope_type": "dynamic", "factor": 2.0},
        },
    ),
    "rope-yarn": (
        "qwen2",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        },
    ),
    "rope-yarn-mscale": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "mscale": 0.7,
                "mscale_all_dim": 0.9,
                "beta_fast": 16.0,
                "truncate": False,
            }
        },
    ),
    "rope-llama3": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        },
    ),
    "rope-longrope": (
        "llama",
        {
            "max_position_embeddings": 32,
            "rope_parameters": {
                "rope_type": "longrope",
                "factor": 2.0,
                "original_max_position_embeddings": 16,
                "short_factor": [1.0, 1.1, 1.2, 1.3],
                "long_factor": [1.5, 2.0, 3.0, 4.0],
            },
        },
    ),
}


def make_model(model_type: str, **changes: Any) -> Any:
    """A transformers model in float32 whose random weights are large enough to matter."""
    from transformers import AutoConfig, AutoModelForCausalLM

    fields: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "initializer_range": 0.2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    if "rope_parameters" in changes:
        changes = changes | {"rope_parameters": {"rope_theta": 500.0, **changes["rope_parameters"]}}
    config = AutoConfig.for_model(model_type, **(fields | changes))
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name or name.endswith("bias"):
                    parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def make_folder(folder: Path, model_type: str, **changes: Any) -> Path:
    """The same model saved as config.json and safetensors."""
    shard_size = changes.pop("max_shard_size", "1GB")
    make_model(model_type, **changes).save_pretrained(folder, max_shard_size=shard_size)
    return folder


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    path: Path, model: Any, kind: GGMLQuantizationType = GGMLQuantizationType.F32, **extra: str
) -> Path:
    """Write a transformers model as the GGUF file that the usual converter would write."""
    config = model.config
    architecture = "llama" if config.model_type == "mistral" else config.model_type
    writer = GGUFWriter(path, architecture)
    head_dim = getattr(config, "head_dim", None) or (
        config.hidden_size // config.num_attention_heads
    )
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(5)
    for name, value in extra.items():
        writer.add_string(name, value)
    for name, values in _gguf_tensors(model, architecture, head_dim).items():
        packed = kind if values.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(name, quantize(values, packed), raw_dtype=packed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_tensors(model: Any, architecture: str, head_dim: int) -> dict[str, Any]:
    tensors = {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        values = parameter.detach().numpy().astype(np.float32)
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = values.reshape(-1, 2, head_dim // 2, *values.shape[1:])
            values = np.ascontiguousarray(heads.swapaxes(1, 2).reshape(values.shape))
        stem, _, suffix = name.rpartition(".")
        if stem.startswith("model.layers."):
            number, _, inner = stem.removeprefix("model.layers.").partition(".")
            tensors[f"blk.{number}.{_GGUF_NAMES[inner]}.{suffix}"] = values
        else:
            tensors[f"{_GGUF_NAMES[stem]}.{suffix}"] = values
    return tensors
