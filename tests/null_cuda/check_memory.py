"""How much of the GPU's memory is taken, and that it is given back."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from stepahead.gpu.cuda.graphs import (
    GRAPH_BYTES,
    CudaCapture,
    GraphFacts,
    coarse_sizes,
    graph_sizes,
)
from stepahead.gpu.cuda.memory import MemoryProfile
from stepahead.gpu.cuda.profiling import profile_memory
from stepahead.gpu.cuda.runner import StepRunner
from stepahead.messages import ConfigError

from .engines import open_named
from .gpu import GIB, counts, have_memory

WORKSPACES = 128 * 2**20  # of cuBLAS: torch keeps them for each stream, to the end


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    yield
    have_memory()


@pytest.mark.parametrize(("gib", "fraction"), [(8, 0.9), (24, 0.5), (24, 0.9), (139, 0.9)])
def test_an_open_device_has_most_of_its_share_and_no_more(gib: int, fraction: float) -> None:
    have_memory(gib * GIB)
    device = open_named("qwen3-0.6b", num_slots=64, gpu_memory_fraction=fraction)
    share = int(gib * GIB * fraction)

    reserved = counts().reserved
    device.close()

    assert share - 2 * GIB < reserved < share


def test_opening_and_closing_leaves_nothing_behind() -> None:
    have_memory()
    left = []
    for _ in range(4):
        open_named("qwen3-0.6b", num_slots=64).close()
        left.append(counts().reserved)

    assert left[0] <= WORKSPACES
    assert set(left) == {left[0]}


@pytest.mark.parametrize(
    ("gib", "said"),
    [(1, r"needs 1\.19 GB .* free of 1\.07 GB"), (2, r"does not fit: 1\.19 GB of weights")],
)
def test_a_model_that_does_not_fit_is_refused_and_nothing_of_it_stays(gib: int, said: str) -> None:
    have_memory(gib * GIB)
    with pytest.raises(ConfigError, match=said) as told:
        open_named("qwen3-0.6b", num_slots=512, max_num_batched_tokens=8192)

    assert told.value is not None  # while it is handled, as whoever opens a smaller one does
    assert counts().reserved <= WORKSPACES


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_graphs_take_no_more_memory_than_was_kept_for_them(
    monkeypatch: pytest.MonkeyPatch, quantization: str
) -> None:
    """The graphs themselves take none here."""
    kept: list[MemoryProfile] = []
    taken: list[GraphFacts] = []

    def profile(*args: Any, **kwargs: Any) -> MemoryProfile:
        kept.append(profile_memory(*args, **kwargs))
        return kept[-1]

    def capture(self: StepRunner, *args: Any) -> GraphFacts:
        taken.append(capture_graphs(self, *args))
        return taken[-1]

    capture_graphs = StepRunner.capture_graphs
    monkeypatch.setattr("stepahead.gpu.cuda.opening.profile_memory", profile)
    monkeypatch.setattr(StepRunner, "capture_graphs", capture)
    device = open_named("qwen3-0.6b", num_slots=512, quantization=quantization)
    device.close()

    sizes = graph_sizes(256)
    graphs = (len(sizes) + len(coarse_sizes(sizes))) * GRAPH_BYTES
    assert device.facts.num_graphs == len(sizes)
    assert taken[0].num_bytes < kept[0].graphs - graphs


def test_what_cuda_does_not_take_as_a_graph_keeps_no_memory_and_no_random_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def capture(self: CudaCapture, run: Callable[[], None]) -> Callable[[], None]:
        def waits() -> None:
            run()
            torch.cuda.synchronize()

        return capture_one(self, waits)

    capture_one = CudaCapture.capture
    monkeypatch.setattr(CudaCapture, "capture", capture)
    have_memory()
    device = open_named("qwen3-0.6b", num_slots=64)
    device.close()

    assert device.facts.num_graphs == 0
    assert counts().reserved <= WORKSPACES
    assert len(torch.rand(1, device="cuda")) == 1
