"""What the driver and torch tell of the first GPU, and which libraries there are."""

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from ...gpu.cuda.finding import find_gpu, why_no_gpu
from ...messages import ConfigError

_LIBRARIES = ("torch", "triton", "transformers", "numpy")


def require_gpu() -> None:
    """Raise ConfigError, in one sentence, where there is no GPU that steps can run on."""
    reason = why_no_gpu(find_gpu())
    if reason is not None:
        raise ConfigError(f"there is no GPU to measure: {reason}")


def card_facts() -> dict[str, object]:
    """Names and sizes of the card, or of the processor where that stands in for one."""
    libraries = {name: _version(name) for name in ("python", *_LIBRARIES)}
    if not torch.cuda.is_available():
        return {"name": "the processor, to try the runs out", **libraries}
    card = torch.cuda.get_device_properties(torch.cuda.current_device())
    free, total = torch.cuda.mem_get_info()
    return {
        "name": card.name,
        "capability": f"{card.major}.{card.minor}",
        "multiprocessors": card.multi_processor_count,
        "memory_gb": round(total / 1e9, 1),
        "free_gb": round(free / 1e9, 1),
        "cuda": torch.version.cuda,
        **libraries,
    }


def _version(name: str) -> str | None:
    if name == "python":
        return platform.python_version()
    try:
        return version(name)
    except PackageNotFoundError:
        return None
