"""Whether this machine has a GPU that kernels run on; asked without Triton and without a kernel."""

import importlib.util
import warnings
from dataclasses import dataclass

import torch

from ...messages import ConfigError

LEAST_CAPABILITY = (
    8,
    0,
)  # bfloat16 in tensor cores and asynchronous copies: A100, RTX 30 and later


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """What can be told of the GPU that would be used."""

    torch_version: str
    cuda_version: str | None  # that torch was built for; None: built without
    fault: str | None = None  # what CUDA said instead of starting
    name: str = ""
    capability: tuple[int, int] = (0, 0)
    has_triton: bool = True


def find_gpu() -> GpuFacts:
    """Look at the first GPU. Starts CUDA where it is there."""
    torch_version, cuda_version = str(torch.__version__), torch.version.cuda
    if cuda_version is None:
        return GpuFacts(torch_version=torch_version, cuda_version=None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is wrong is told by an error, once
            torch.cuda.init()  # type: ignore[no-untyped-call]
            name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    except (RuntimeError, AssertionError) as error:
        return GpuFacts(torch_version=torch_version, cuda_version=cuda_version, fault=_said(error))
    return GpuFacts(
        torch_version=torch_version,
        cuda_version=cuda_version,
        name=name,
        capability=capability,
        has_triton=importlib.util.find_spec("triton") is not None,
    )


def _said(error: Exception) -> str:
    """The first line of what an error says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def require_launchers() -> None:
    """Raise ConfigError where Triton cannot build what starts its kernels; it does that with a C
    compiler, once on a machine. There must be a GPU."""
    from triton.runtime import driver

    try:
        _ = driver.active  # builds what all kernels need, unless that was built before
    except Exception as error:  # of a compiler that is not there, or that fails
        raise ConfigError(
            f"device is 'cuda', and Triton cannot build what starts its kernels ({_said(error)}); "
            "it needs a C compiler and Python's headers (gcc, python3-dev), or take device='cpu'"
        ) from error


def require_gpu() -> None:
    """Raise ConfigError, with what would work, where there is no GPU that kernels run on."""
    reason = why_no_gpu(find_gpu())
    if reason is not None:
        raise ConfigError(f"device is 'cuda', and {reason}")


def why_no_gpu(facts: GpuFacts) -> str | None:
    """Why no step can run there and what would help; None where one can."""
    if facts.cuda_version is None:
        return (
            f"torch {facts.torch_version} is built without CUDA; install a build with it, or take "
            "device='cpu'"
        )
    if facts.fault is not None:
        return (
            f"CUDA {facts.cuda_version} does not start ({facts.fault}); it needs an NVIDIA GPU and "
            "a driver that is new enough, or take device='cpu'"
        )
    if facts.capability < LEAST_CAPABILITY:
        given, least = (".".join(map(str, c)) for c in (facts.capability, LEAST_CAPABILITY))
        return (
            f"{facts.name} has compute capability {given}; {least} or newer is needed (A100, "
            "RTX 30 and later), or take device='cpu'"
        )
    if not facts.has_triton:
        return "Triton is not installed; install stepahead[gpu], or take device='cpu'"
    return None
