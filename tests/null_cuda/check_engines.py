"""Whole engines, from files to answers: torch, Triton's launches, graphs and all but the GPU."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import triton

from stepahead import SamplingParams
from stepahead.gpu.queued import told

from ..drawn_lives import VOCAB, draw_ask, draw_options, live
from ..tiny_models import make_folder
from .engines import running
from .gpu import counts


class Compiled:
    """Names of the kernels that were compiled while it was told to look."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, *, fn: Any, **_: Any) -> None:
        self.names.append(fn.name)


@pytest.fixture
def compiled() -> Iterator[Compiled]:
    found = Compiled()
    triton.knobs.runtime.jit_post_compile_hook = found
    yield found
    triton.knobs.runtime.jit_post_compile_hook = None


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said of the steps that fail."""
    found: list[str] = []

    def noted(*args: Any) -> str:
        found.append(told(*args))
        return found[-1]

    monkeypatch.setattr("stepahead.gpu.cuda.device.told", noted)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("model")
    return make_folder(where, "qwen3", vocab_size=VOCAB, hidden_size=256, head_dim=64)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"quantization": "int4"},
        {"quantization": "int8", "kv_dtype": "fp8"},
        {"dtype": "float32"},
    ],
    ids=lambda options: ", ".join(map(str, options.values())) or "bfloat16",
)
@pytest.mark.parametrize("seed", range(4))
async def test_once_it_is_open_nothing_waits_is_compiled_or_reserves_memory(
    folder: Path, compiled: Compiled, failures: list[str], options: dict[str, Any], seed: int
) -> None:
    rng = random.Random(seed)
    shared = [rng.randrange(3, 250) for _ in range(20)]
    asks = [draw_ask(rng, shared, may_be_structured=False) for _ in range(16)]
    delays = [rng.choice([0.0, 0.0, 0.02, 0.1]) for _ in asks]
    async with running(str(folder), **(draw_options(rng) | options)) as engine:
        compiled.names.clear()
        before = counts()

        said = await asyncio.gather(*map(live, [engine] * len(asks), asks, delays))
        await engine.generate([5, 6, 7], SamplingParams(max_tokens=8, ignore_eos=True))

        stats, after = engine.stats(), counts()
    assert failures == []  # as steps that wait would
    assert all(set(ids) == {0} for ids in said)
    assert compiled.names == []
    assert after.reservations == before.reservations
    assert after.graph_launches > before.graph_launches
    assert stats.running == stats.waiting == 0
