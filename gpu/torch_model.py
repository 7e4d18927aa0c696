"""The way through torch: a decoder made of its operations, over paged attention."""

import torch
from torch import Tensor

from ..messages import Floats, Longs, StepPlan
from .attention import StepAttention, Workspace
from .inputs import make_inputs
from .kv import LayerShape, PagedKV
from .models.decoder import Decoder
from .models.opening import OpenModel, torch_dtype
from .slots import SlotTables
from .step_model import StepModel
from .tensor_kv import TensorKV


class TorchModel:
    """Plans to logits, all rows at once."""

    def __init__(self, decoder: Decoder, kv: TensorKV) -> None:
        self._decoder = decoder
        self._kv = kv
        self._workspace = Workspace()
        self._hidden: Tensor | None = None  # of the last plan's tokens  # [tokens, hidden]

    @torch.inference_mode()
    def logits(self, plan: StepPlan, tables: SlotTables) -> Floats:
        inputs = make_inputs(plan, tables)
        attention = StepAttention(inputs, self._kv, self._workspace)
        self._hidden = self._decoder.forward(inputs, attention)
        return self._head(inputs.sampling_tokens)

    @torch.inference_mode()
    def logits_behind(self, tokens: Longs) -> Floats:
        return self._head(torch.from_numpy(tokens))

    def _head(self, tokens: Tensor) -> Floats:
        assert self._hidden is not None, "nothing was computed"
        logits: Floats = self._decoder.head(self._hidden.index_select(0, tokens)).float().numpy()
        return logits

    def close(self) -> None:
        """Everything is torch's own."""


def make_tensor_kv(
    layers: tuple[LayerShape, ...], dtype: str, *, num_blocks: int, block_size: int
) -> TensorKV:
    """Memory that torch computes with, in its type of that name."""
    return TensorKV(layers, num_blocks=num_blocks, block_size=block_size, dtype=torch_dtype(dtype))


def bind_decoder(
    model: OpenModel, max_model_len: int, kv: PagedKV, *, deterministic: bool
) -> StepModel:
    """Load a model's weights in their plain form, over this memory."""
    assert isinstance(kv, TensorKV), "the memory is not torch's"
    with torch.inference_mode():
        decoder = model.build(max_model_len)
        if not deterministic:
            return TorchModel(decoder, kv)
        from .tiles import TiledModel

        return TiledModel(decoder, kv)
