"""Decoder: a model made of torch's operations, and how one is built of a model's files."""

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ...messages import ModelError
from ..attention import Attention
from ..inputs import StepInputs
from ..loading.account import WeightSource
from ..loading.weights import Weights
from .config import Fields, ModelConfig, eos_of_folder
from .llama import LlamaDecoder
from .opening import OpenModel


class Decoder(Protocol):
    """A model on flat batches: what a step runs."""

    def forward(self, inputs: StepInputs, attention: Attention) -> Tensor:
        """What the last layer says of each of the step's tokens.  # [tokens, hidden]"""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of some of those.  # [some, hidden] → [some, vocab]"""
        ...


def build_decoder(
    config: ModelConfig,
    source: WeightSource,
    max_model_len: int,
    dtype: torch.dtype,
    *,
    generic: bool = False,
) -> Decoder:
    """Bind the weights of a Llama-like model; with `generic`, of a GGUF file, to transformers."""
    if not generic:
        return LlamaDecoder(config, Weights(source, dtype), max_model_len, dtype)
    from .generic import GenericDecoder
    from .generic_gguf import load_generic_gguf

    return GenericDecoder(load_generic_gguf(config, source, dtype, max_model_len))


def open_generic(folder: Path, fields: Fields, dtype: torch.dtype) -> OpenModel:
    """Any model, through transformers. Here the weights come first: only the running model tells
    what its layers keep."""
    from .fixed_rope import fix_frequencies
    from .generic import GenericDecoder, kv_shapes, load_generic

    model = load_generic(folder, fields, dtype)

    def build(max_model_len: int) -> GenericDecoder:
        fix_frequencies(model, max_model_len)
        return GenericDecoder(model)

    text = model.config.get_text_config()
    context_length = getattr(text, "max_position_embeddings", None)
    if not isinstance(context_length, int):
        raise ModelError(f"{folder}/config.json lacks max_position_embeddings")
    with torch.inference_mode():
        layers = kv_shapes(model, str(folder))
    return OpenModel(text.vocab_size, context_length, eos_of_folder(folder, fields), layers, build)
