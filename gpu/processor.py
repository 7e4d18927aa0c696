"""What the processor can do, as the system tells it. Knows no torch."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

_LISTS = ("flags", "Features")  # what x86 and Arm call them in /proc/cpuinfo
_NAMES = ("model name", "Hardware", "Processor")

NOTABLE = {
    "amx_bf16": "AMX bfloat16",
    "amx_int8": "AMX int8",
    "avx512f": "AVX-512",
    "avx512_bf16": "AVX-512 bfloat16",
    "avx512_vnni": "AVX-512 VNNI",
    "avx512_fp16": "AVX-512 float16",
    "avx_vnni": "AVX VNNI",
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "asimd": "NEON",
    "asimddp": "NEON dot product",
    "asimdhp": "NEON float16",
    "i8mm": "int8 matrices",
    "bf16": "bfloat16 matrices",
    "sve": "SVE",
    "sve2": "SVE2",
    "sme": "SME",
}
"""Features that multiply a model's numbers faster, by the name that Linux has for them."""


@dataclass(frozen=True, slots=True)
class Processor:
    """One of the machine's processors; they are taken to be alike."""

    name: str
    machine: str  # x86_64, aarch64, …
    features: frozenset[str]  # as Linux names them; empty where the system does not tell
    cores: int  # that this process may use

    @property
    def notable(self) -> list[str]:
        """What speaks for its speed, in words."""
        return [words for feature, words in NOTABLE.items() if feature in self.features]


def read_processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> Processor:
    """This machine's processor; elsewhere than on Linux its features are not known."""
    fields: dict[str, str] = {}
    try:
        for line in cpuinfo.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    except OSError:
        pass
    name = next((fields[key] for key in _NAMES if fields.get(key)), platform.processor())
    features = next((fields[key] for key in _LISTS if key in fields), "")
    return Processor(name or "unknown", platform.machine(), frozenset(features.split()), _cores())


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
