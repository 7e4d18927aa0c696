"""From a model's path to its tokenizer."""

from pathlib import Path

from ...messages import ModelError
from .gguf_tokenizer import make_gguf_tokenizer
from .hf_tokenizer import make_hf_tokenizer
from .tokenizer import Tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a GGUF file or a Hugging Face folder, or raise ModelError."""
    if path.is_dir():
        return make_hf_tokenizer(path)
    from ...gpu.loading.gguf_file import GgufFile

    metadata = GgufFile(path).metadata
    try:
        return make_gguf_tokenizer(metadata)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
