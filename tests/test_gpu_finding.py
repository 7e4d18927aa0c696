"""What is said of a machine without a GPU that kernels run on."""

import pytest
import torch

from stepahead.gpu.cuda.driver import has_driver
from stepahead.gpu.cuda.finding import (
    GpuFacts,
    find_gpu,
    require_gpu,
    require_launchers,
    why_no_gpu,
)
from stepahead.messages import ConfigError

HAS_GPU = torch.cuda.is_available()


def facts(**changes: object) -> GpuFacts:
    fields: dict[str, object] = {
        "torch_version": "2.11.0+cu130",
        "cuda_version": "13.0",
        "name": "NVIDIA H200",
        "capability": (9, 0),
    }
    return GpuFacts(**(fields | changes))  # type: ignore[arg-type]  # fields checked by tests


def test_a_gpu_of_ours_is_taken() -> None:
    assert why_no_gpu(facts()) is None
    assert why_no_gpu(facts(capability=(8, 0))) is None
    assert why_no_gpu(facts(capability=(12, 0))) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cuda_version": None}, "torch 2.11.0.cu130 is built without CUDA"),
        (
            {"fault": "The NVIDIA driver on your system is too old"},
            "driver on your system is too old",
        ),
        ({"fault": "No CUDA GPUs are available"}, "13.0 does not start .No CUDA GPUs"),
        ({"name": "Tesla T4", "capability": (7, 5)}, "Tesla T4 has compute capability 7.5; 8.0"),
        ({"has_triton": False}, r"Triton is not installed; install stepahead\[gpu\]"),
    ],
)
def test_what_is_missing_is_said_with_what_would_work(
    changes: dict[str, object], said: str
) -> None:
    reason = why_no_gpu(facts(**changes))

    assert reason is not None
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(reason)
    assert "device='cpu'" in reason


def test_where_a_gpu_is_found_there_is_a_driver() -> None:
    """Only where there is one an engine looks for the other."""
    assert has_driver() or why_no_gpu(find_gpu()) is not None


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
def test_where_there_is_no_gpu_the_reason_is_told_at_once() -> None:
    assert why_no_gpu(find_gpu()) is not None
    with pytest.raises(ConfigError, match=r"device is 'cuda', and .* or take device='cpu'"):
        require_gpu()


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
def test_what_triton_cannot_build_is_told_with_what_would_help() -> None:
    pytest.importorskip("triton", reason="Triton is not installed: the extra `gpu` brings it")

    with pytest.raises(ConfigError, match=r"cannot build .*C compiler .* or take device='cpu'"):
        require_launchers()
