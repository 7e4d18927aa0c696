"""What `auto` stands for on a processor, and why. Pure: the device and `doctor` ask the same."""

from dataclasses import dataclass

from .processor import NOTABLE, Processor

_NATIVE_BFLOAT16 = ("amx_bf16", "avx512_bf16", "bf16")
_NATIVE_QUANTISED = (  # what names the way, and all that it takes
    ("amx_bf16", {"amx_bf16", "avx512_bf16", "avx512_vnni"}),
    ("avx512_vnni", {"avx512_vnni"}),
    ("avx2", {"avx2", "fma", "f16c"}),
)


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
    by = next((name for name, needed in _NATIVE_QUANTISED if needed <= processor.features), None)
    if by is None:
        why = "the processor has neither AVX-512 VNNI nor AVX2"
        return Choice("quantization", "none", why)
    if not has_compiler:
        return Choice("quantization", "none", "there is no C compiler for the native decoder")
    return Choice("quantization", "as packed", f"GGUF weights run natively ({NOTABLE[by]})")


def auto_choices(processor: Processor, *, has_compiler: bool) -> tuple[Choice, ...]:
    """Everything that `auto` decides by the machine."""
    return auto_dtype(processor), auto_quantization(processor, has_compiler=has_compiler)
