"""What `auto` stands for on a processor, and why. Pure: the device and `doctor` ask the same."""

from dataclasses import dataclass

from .processor import NOTABLE, Processor

_NATIVE_BFLOAT16 = ("amx_bf16", "avx512_bf16", "bf16")


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen for an option, and the reason in words."""

    option: str
    value: str
    why: str


def auto_dtype(processor: Processor) -> Choice:
    """bfloat16 where the processor multiplies it natively, else float32."""
    for feature in _NATIVE_BFLOAT16:
        if feature in processor.features:
            return Choice("dtype", "bfloat16", f"the processor multiplies it ({NOTABLE[feature]})")
    if not processor.features:
        return Choice("dtype", "float32", "what the processor can do is not known here")
    return Choice("dtype", "float32", "the processor does not multiply bfloat16")


def auto_quantization(processor: Processor, *, has_compiler: bool) -> Choice:
    """GGUF weights as they are packed, where the native decoder can be compiled and is fast."""
    if "avx512_vnni" not in processor.features:
        return Choice("quantization", "none", "the processor has no AVX-512 VNNI")
    if not has_compiler:
        return Choice("quantization", "none", "there is no C compiler for the native decoder")
    return Choice("quantization", "as packed", "GGUF weights run natively (AVX-512 VNNI)")


def auto_choices(processor: Processor, *, has_compiler: bool) -> tuple[Choice, ...]:
    """Everything that `auto` decides by the machine."""
    return auto_dtype(processor), auto_quantization(processor, has_compiler=has_compiler)
