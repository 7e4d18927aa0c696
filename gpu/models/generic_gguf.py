"""A GGUF file's model in transformers: slow to start, and the oracle of the fast path."""

from typing import Any

import torch

from ..loading.account import WeightSource
from ..loading.weights import Weights
from .config import ModelConfig
from .generic import ATTENTION_NAME, register_attention


def load_generic_gguf(
    config: ModelConfig, source: WeightSource, dtype: torch.dtype, max_model_len: int
) -> Any:
    """Build the transformers model of a configuration and fill it from a GGUF file."""
    from transformers import AutoConfig, AutoModelForCausalLM

    register_attention()
    hf_config = AutoConfig.for_model(config.family, **_fields(config))
    model = AutoModelForCausalLM.from_config(
        hf_config, attn_implementation=ATTENTION_NAME, dtype=dtype
    )
    weights = Weights(source, dtype)
    state = model.state_dict()
    tied = {"lm_head.weight"} if config.tied_embeddings else set()
    for name, parameter in state.items():
        if name not in tied:
            parameter.copy_(weights.take(name, *parameter.shape))
    weights.finish()
    rotary = model.model.rotary_emb
    rotary.inv_freq = torch.from_numpy(config.rope.frequencies(config.head_dim, max_model_len))
    rotary.attention_scaling = config.rope.magnitude
    return model.eval()


def _fields(config: ModelConfig) -> dict[str, Any]:
    """The configuration in transformers' words; rotary frequencies are set afterwards."""
    window = next((w for w in config.windows if w is not None), None)
    return {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "rms_norm_eps": config.rms_eps,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context_length,
        "attention_bias": config.output_bias,
        "mlp_bias": config.mlp_bias,
        "tie_word_embeddings": config.tied_embeddings,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope.theta},
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "max_window_layers": 0,
    }
