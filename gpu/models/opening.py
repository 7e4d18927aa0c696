"""From a model's files to a runnable model: which path fits, and what it needs."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ..attention import StepAttention
from ..inputs import StepInputs
from ..kv import LayerShape
from ..loading.gguf_file import GgufFile
from ..loading.gguf_weights import GgufWeights
from ..loading.safetensors_files import SafetensorsFiles
from ..loading.weights import Weights, WeightSource
from .config import ModelConfig, config_of_folder, has_fast_path, read_config
from .gguf_config import config_of_gguf
from .llama import LlamaDecoder, kv_layers


class Decoder(Protocol):
    """A model on flat batches: what a step runs."""

    def forward(self, inputs: StepInputs, attention: StepAttention) -> Tensor:
        """Logits of each row that samples.  # [num_samples, vocab]"""
        ...


@dataclass(frozen=True, slots=True)
class OpenModel:
    """What is known of a model before its weights are bound."""

    vocab_size: int
    context_length: int  # positions
    eos_token_ids: frozenset[int]
    layers: tuple[LayerShape, ...]  # what each layer keeps per position
    build: Callable[[int], Decoder]  # given the longest sequence, bind weights and tables


def open_model(path: Path, dtype: torch.dtype, *, generic: bool = False) -> OpenModel:
    """Read a model's configuration; its weights are loaded by `build`.

    GGUF files and the Llama-like families run on the fast path, every other model (and all of
    them with `generic`) through transformers.
    """
    if path.is_file():
        file = GgufFile(path)
        config = config_of_gguf(file)
        if generic:
            from .generic import open_generic_gguf

            return open_generic_gguf(file, config, dtype)
        return _fast(config, GgufWeights(file, config.head_dim), dtype)
    fields = read_config(path)
    if generic or not has_fast_path(fields):
        from .generic import open_generic_folder

        return open_generic_folder(path, fields, dtype)
    return _fast(config_of_folder(path, fields), SafetensorsFiles(path), dtype)


def _fast(config: ModelConfig, source: WeightSource, dtype: torch.dtype) -> OpenModel:
    def build(max_model_len: int) -> LlamaDecoder:
        return LlamaDecoder(config, Weights(source, dtype), max_model_len, dtype)

    return OpenModel(
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        eos_token_ids=config.eos_token_ids,
        layers=kv_layers(config),
        build=build,
    )
