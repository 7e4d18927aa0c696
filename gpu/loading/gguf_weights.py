"""GgufWeights: a GGUF file's tensors under their Hugging Face names."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from .dequantise import Floats
from .gguf_file import GgufFile, GgufTensor

if TYPE_CHECKING:
    from torch import Tensor

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

    def floats(self, name: str) -> Floats:
        values = np.concatenate(list(self._tensors[name].pieces())).reshape(self.shape(name))
        if not self.is_interleaved(name):
            return values
        heads = values.reshape(-1, self._head_dim // 2, 2, *values.shape[1:])
        return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(values.shape)

    def read(self, name: str, out: "Tensor") -> None:
        import torch  # which whoever has a tensor to fill has already

        if self.is_interleaved(name):
            out.copy_(torch.from_numpy(self.floats(name)))
            return
        flat, begin = out.view(-1), 0
        for piece in self._tensors[name].pieces():
            # Values of the mapped file itself are read-only, which torch would warn about.
            own = piece if piece.flags.writeable else piece.copy()
            flat[begin : begin + len(piece)].copy_(torch.from_numpy(own))
            begin += len(piece)


def _hf_name(name: str) -> str:
    """The Hugging Face name; a tensor that has none keeps its own and counts as unexpected."""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    match = _BLOCK_TENSOR.fullmatch(name)
    if match is None or match[2] not in _INSIDE:
        return name
    return f"model.layers.{match[1]}.{_INSIDE[match[2]]}.{match[3]}"
