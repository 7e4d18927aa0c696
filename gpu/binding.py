"""Which way a model is computed: by the native decoder on quantised weights, or by torch.

Here the ways part, and only the other one imports torch.
"""

import logging

from ..messages import ConfigError, ModelError
from .kv import LayerShape, PagedKV
from .loading.gguf_weights import GgufWeights
from .models.opening import OpenModel
from .native.compiling import NoCompiler
from .native.decoder import NativeDecoder, default_threads, why_not
from .native.kv import HalfKV
from .native.library import load_library
from .options import DeviceOptions
from .step_model import StepModel

logger = logging.getLogger(__name__)

QUANTISED = ("int8", "int4")

NATIVE = "float16"  # what the native decoder keeps keys and values in, and nobody else
ITEM_BYTES = {"float32": 4, "bfloat16": 2, NATIVE: 2}


def choose_kv_dtype(model: OpenModel, options: DeviceOptions, dtype: str) -> str:
    """What keys and values are kept in, which also tells how the model is computed: float16 is
    the native decoder's, everything else torch's in that dtype.

    Raises ConfigError where quantised weights are asked for and cannot be run.
    """
    reason = why_not_native(model, options)
    if reason is None:
        return NATIVE
    if options.quantization in QUANTISED:
        raise ConfigError(f"quantization {options.quantization} cannot be had: {reason}")
    logger.info("weights are not computed as they are packed: %s", reason)
    return dtype


def why_not_native(model: OpenModel, options: DeviceOptions) -> str | None:
    """Why a model is not run on quantised weights; None where it is."""
    if options.quantization == "none":
        return "quantization is none"
    if options.dtype != "auto":
        return f"dtype {options.dtype} was asked for"
    if model.fast is None:
        return "models of this family run through transformers only"
    config, source = model.fast
    if options.quantization == "auto" and not isinstance(source, GgufWeights):
        return "the files hold no quantised weights"
    reason = why_not(config, options.block_size)
    if reason is not None:
        return reason
    try:
        is_fast = load_library().stepahead_rate() > 0
    except NoCompiler as error:
        return str(error)
    return None if is_fast else "the processor has neither AVX-512 VNNI nor AVX2"


def make_kv(
    layers: tuple[LayerShape, ...], dtype: str, *, num_blocks: int, block_size: int
) -> PagedKV:
    """Memory for keys and values in this dtype. Raises MemoryError, or ValueError where numpy
    cannot count that far."""
    if dtype == NATIVE:
        return HalfKV(layers, num_blocks=num_blocks, block_size=block_size)
    from .torch_model import make_tensor_kv

    return make_tensor_kv(layers, dtype, num_blocks=num_blocks, block_size=block_size)


def bind(
    model: OpenModel,
    max_model_len: int,
    kv: PagedKV,
    *,
    bits: int = 8,
    deterministic: bool = False,
) -> StepModel:
    """Load a model's weights for sequences of up to `max_model_len`, over this KV memory. Weights
    of more than `bits` are quantised to 8 or 4 of them, by the native decoder. With `deterministic`
    a token's logits are the same bits in every batch and chunk.

    Raises ModelError where the memory is the native decoder's and the model is not for it, and
    ConfigError where a model cannot be deterministic.
    """
    bound = _bind(model, max_model_len, kv, bits, deterministic)
    if model.fast is not None and isinstance(model.fast[1], GgufWeights):
        model.fast[1].release()
    return bound


def _bind(
    model: OpenModel, max_model_len: int, kv: PagedKV, bits: int, deterministic: bool
) -> StepModel:
    if not isinstance(kv, HalfKV):
        from .torch_model import bind_decoder

        return bind_decoder(model, max_model_len, kv, deterministic=deterministic)
    if model.fast is None:
        raise ModelError("models of this family cannot be run on quantised weights")
    config, source = model.fast
    reason = why_not(config, kv.block_size)
    if reason is not None:
        raise ModelError(f"the model cannot be run on quantised weights: {reason}")
    threads = default_threads()
    return NativeDecoder(
        config, source, kv, max_model_len, threads, bits=bits, deterministic=deterministic
    )


def bits_of(options: DeviceOptions) -> int:
    """How many bits weights may keep."""
    return 4 if options.quantization == "int4" else 8
