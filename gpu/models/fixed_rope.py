"""Rotary frequencies of a transformers model, fixed from the configured context.

transformers recomputes those of dynamic and longrope scaling from the longest position in each
batch, so a token's keys would depend on its neighbours.
"""

from typing import Any

from torch import nn

_BATCH_DEPENDENT = ("dynamic", "longrope")


def fix_frequencies(model: nn.Module, max_model_len: int) -> None:
    """Compute them once for sequences of up to `max_model_len` and stop the recomputing."""
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        if isinstance(kinds, str) and kinds in _BATCH_DEPENDENT:
            _fix(module, kinds, None, max_model_len)
            module.rope_type = "default"  # type: ignore[assignment]  # not a tensor or module
        elif isinstance(kinds, dict):
            for layer_type, kind in kinds.items():
                if kind in _BATCH_DEPENDENT:
                    _fix(module, kind, layer_type, max_model_len)
                    kinds[layer_type] = "default"


def _fix(module: Any, kind: str, layer_type: str | None, max_model_len: int) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    prefix = "" if layer_type is None else f"{layer_type}_"
    options = {} if layer_type is None else {"layer_type": layer_type}
    frequencies, magnitude = ROPE_INIT_FUNCTIONS[kind](
        module.config, module.inv_freq.device, seq_len=max_model_len, **options
    )
    setattr(module, f"{prefix}inv_freq", frequencies)
    setattr(module, f"{prefix}attention_scaling", magnitude)
