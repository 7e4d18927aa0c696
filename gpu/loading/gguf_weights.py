"""GgufWeights: a GGUF file's tensors under their Hugging Face names."""

import re
from collections.abc import Iterable

import torch
from torch import Tensor

from .dequantise import Floats
from .gguf_file import GgufFile, GgufTensor

_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TABLES = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})
_BLOCK_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_ROTATED = re.compile(r"self_attn\.[qk]_proj\.(weight|bias)$")


class GgufWeights:
    """Tensors of a GGUF file; rows that the format reorders are put back in order."""

    def __init__(self, file: GgufFile, head_dim: int) -> None:
        self.source = str(file.path)
        self.release = file.release  # the memory of what was read
        self._head_dim = head_dim
        # Only files of this architecture keep the halves of each rotated head interleaved.
        self._interleaved = file.metadata.get("general.architecture") == "llama"
        self._tensors = {
            _hf_name(name): tensor for name, tensor in file.tensors.items() if name not in _TABLES
        }

    def names(self) -> Iterable[str]:
        return self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def tensor(self, name: str) -> GgufTensor:
        """The tensor as the file packs it."""
        return self._tensors[name]

    def is_interleaved(self, name: str) -> bool:
        """Whether the halves of each head of this tensor are interleaved."""
        return self._interleaved and _ROTATED.search(name) is not None

    def read(self, name: str, out: Tensor) -> None:
        if self.is_interleaved(name):
            rows = torch.empty_like(out)
            self._copy(name, rows)
            out.copy_(_halves_apart(rows, self._head_dim))
        else:
            self._copy(name, out)

    def _copy(self, name: str, out: Tensor) -> None:
        flat, begin = out.view(-1), 0
        for piece in self._tensors[name].pieces():
            flat[begin : begin + len(piece)].copy_(_as_tensor(piece))
            begin += len(piece)


def _as_tensor(values: Floats) -> Tensor:
    """Values of the mapped file itself are read-only, which torch would warn about."""
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def _hf_name(name: str) -> str:
    """The Hugging Face name; a tensor that has none keeps its own and counts as unexpected."""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    match = _BLOCK_TENSOR.fullmatch(name)
    if match is None or match[2] not in _INSIDE:
        return name
    return f"model.layers.{match[1]}.{_INSIDE[match[2]]}.{match[3]}"


def _halves_apart(rows: Tensor, head_dim: int) -> Tensor:
    """Per head, rows 0, 2, 4, … come first, then rows 1, 3, 5, …"""
    rest = rows.shape[1:]
    heads = rows.view(-1, head_dim // 2, 2, *rest)
    return heads.transpose(1, 2).reshape(-1, *rest)
