"""From a model's files to a runnable model: which path fits, and what it needs."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ...messages import ModelError
from ..attention import Attention
from ..inputs import StepInputs
from ..kv import LayerShape
from ..loading.gguf_file import GgufFile
from ..loading.gguf_weights import GgufWeights
from ..loading.safetensors_files import SafetensorsFiles
from ..loading.weights import Weights, WeightSource
from .config import (
    Fields,
    ModelConfig,
    config_of_folder,
    eos_of_folder,
    has_fast_path,
    read_config,
)
from .gguf_config import config_of_gguf
from .llama import LlamaDecoder, kv_layers


class Decoder(Protocol):
    """A model on flat batches: what a step runs."""

    def forward(self, inputs: StepInputs, attention: Attention) -> Tensor:
        """What the last layer says of each of the step's tokens.  # [tokens, hidden]"""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of some of those.  # [some, hidden] → [some, vocab]"""
        ...


@dataclass(frozen=True, slots=True)
class OpenModel:
    """What is known of a model before its weights are bound."""

    vocab_size: int
    context_length: int  # positions
    eos_token_ids: frozenset[int]
    layers: tuple[LayerShape, ...]  # what each layer keeps per position
    build: Callable[[int], Decoder]  # given the longest sequence, bind weights and tables
    fast: tuple[ModelConfig, WeightSource] | None = None  # where the fast decoders fit it


def has_fast_decoder(path: Path) -> bool:
    """Whether `open_model` takes the fast path for these files; asked before any weight is read."""
    return path.is_file() or has_fast_path(read_config(path))


def open_model(path: Path, dtype: torch.dtype, *, generic: bool = False) -> OpenModel:
    """Read a model's configuration; its weights are loaded by `build`.

    GGUF files and the Llama-like families run on the fast path, every other model (and all of
    them with `generic`) through transformers.
    """
    if path.is_file():
        file = GgufFile(path)
        config = config_of_gguf(file)
        source = GgufWeights(file, config.head_dim)
        return _configured(config, source, dtype, generic)
    fields = read_config(path)
    files = SafetensorsFiles(path)
    if generic or not has_fast_path(fields):
        return _through_transformers(path, fields, dtype)
    return _configured(config_of_folder(path, fields), files, dtype, False)


def _configured(
    config: ModelConfig, source: WeightSource, dtype: torch.dtype, generic: bool
) -> OpenModel:
    weights = Weights(source, dtype)
    kept = config.num_kv_heads * config.head_dim
    for layer in (0, config.num_layers - 1):  # so that the KV memory is sized by what is true
        name = f"model.layers.{layer}.self_attn.k_proj.weight"
        weights.require(name, kept, config.hidden_size)

    def build(max_model_len: int) -> Decoder:
        if generic:
            from .generic import GenericDecoder
            from .generic_gguf import load_generic_gguf

            return GenericDecoder(load_generic_gguf(config, source, dtype, max_model_len))
        return LlamaDecoder(config, Weights(source, dtype), max_model_len, dtype)

    return OpenModel(
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        eos_token_ids=config.eos_token_ids,
        layers=kv_layers(config),
        build=build,
        fast=None if generic else (config, source),
    )


def _through_transformers(folder: Path, fields: Fields, dtype: torch.dtype) -> OpenModel:
    """Here the weights come first: only the running model tells what its layers keep."""
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
