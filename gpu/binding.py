"""Which way a model is computed: by the native decoder on its quantised weights, or by torch."""

import logging

import torch

from ..messages import ModelError
from .kv import PagedKV
from .models.opening import OpenModel
from .native.compiling import NoCompiler
from .native.decoder import KV_DTYPE, NativeDecoder, default_threads, why_not
from .native.library import load_library
from .options import DeviceOptions
from .step_model import StepModel, TorchModel

logger = logging.getLogger(__name__)


def choose_kv_dtype(model: OpenModel, options: DeviceOptions, dtype: torch.dtype) -> torch.dtype:
    """What keys and values are kept in, which also tells how the model is computed: float16 is
    the native decoder's, everything else is torch's in that dtype."""
    reason = why_not_native(model, options)
    if reason is None:
        return KV_DTYPE
    logger.info("weights are not computed as the file packs them: %s", reason)
    return dtype


def why_not_native(model: OpenModel, options: DeviceOptions) -> str | None:
    """Why a model's weights are not run as its file packs them; None where they are."""
    if options.quantization == "none":
        return "quantization is none"
    if options.dtype != "auto":
        return f"dtype {options.dtype} was asked for"
    if model.gguf is None:
        return "they are no GGUF file's"
    config, _ = model.gguf
    reason = why_not(config, options.block_size)
    if reason is not None:
        return reason
    try:
        is_fast = load_library().stepahead_has_vnni()
    except NoCompiler as error:
        return str(error)
    return None if is_fast else "the processor has no AVX-512 VNNI"


def bind(model: OpenModel, max_model_len: int, kv: PagedKV) -> StepModel:
    """Load a model's weights for sequences of up to `max_model_len`, over this KV memory.

    Raises ModelError where the memory is the native decoder's and the model is not for it.
    """
    if kv.dtype != KV_DTYPE:
        return TorchModel(model.build(max_model_len), kv)
    if model.gguf is None or (reason := why_not(model.gguf[0], kv.block_size)) is not None:
        told = "it is no GGUF file" if model.gguf is None else reason
        raise ModelError(f"the model cannot be run on quantised weights as the one before: {told}")
    config, weights = model.gguf
    return NativeDecoder(config, weights, kv, max_model_len, default_threads())
