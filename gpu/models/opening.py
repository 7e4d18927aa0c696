"""From a model's files to what is known of it, and how it is built: no torch before that."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..kv import LayerShape
from ..loading.account import Account, WeightSource
from ..loading.gguf_file import GgufFile
from ..loading.gguf_weights import GgufWeights
from .config import ModelConfig, config_of_folder, has_fast_path, kv_layers, read_config
from .gguf_config import config_of_gguf

if TYPE_CHECKING:
    import torch

    from .decoder import Decoder


@dataclass(frozen=True, slots=True)
class OpenModel:
    """What is known of a model before its weights are bound."""

    vocab_size: int
    context_length: int  # positions
    eos_token_ids: frozenset[int]
    layers: tuple[LayerShape, ...]  # what each layer keeps per position
    build: Callable[[int], "Decoder"]  # given the longest sequence, bind weights and tables
    fast: tuple[ModelConfig, WeightSource] | None = None  # where the fast decoders fit it


def has_fast_decoder(path: Path) -> bool:
    """Whether `open_model` takes the fast path for these files; asked before any weight is read."""
    return path.is_file() or has_fast_path(read_config(path))


def open_model(path: Path, dtype: str, *, generic: bool = False) -> OpenModel:
    """Read a model's configuration; its weights are loaded by `build`, to this type of torch's.

    GGUF files and the Llama-like families run on the fast path, every other model (and all of
    them with `generic`) through transformers.
    """
    if path.is_file():
        file = GgufFile(path)
        config = config_of_gguf(file)
        return _configured(config, GgufWeights(file, config.head_dim), dtype, generic)
    from ..loading.safetensors_files import SafetensorsFiles
    from .decoder import open_generic

    fields = read_config(path)
    files = SafetensorsFiles(path)
    if generic or not has_fast_path(fields):
        return open_generic(path, fields, torch_dtype(dtype))
    return _configured(config_of_folder(path, fields), files, dtype, False)


def _configured(config: ModelConfig, source: WeightSource, dtype: str, generic: bool) -> OpenModel:
    account = Account(source)
    kept = config.num_kv_heads * config.head_dim
    for layer in (0, config.num_layers - 1):  # so that the KV memory is sized by what is true
        name = f"model.layers.{layer}.self_attn.k_proj.weight"
        account.require(name, kept, config.hidden_size)

    def build(max_model_len: int) -> "Decoder":
        from .decoder import build_decoder

        return build_decoder(config, source, max_model_len, torch_dtype(dtype), generic=generic)

    return OpenModel(
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        eos_token_ids=config.eos_token_ids,
        layers=kv_layers(config),
        build=build,
        fast=None if generic else (config, source),
    )


def torch_dtype(name: str) -> "torch.dtype":
    """torch's type of that name. Imports torch."""
    import torch

    found: torch.dtype = getattr(torch, name)
    return found
