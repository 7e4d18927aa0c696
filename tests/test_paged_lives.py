"""Random lives of an engine on the CUDA device's code, against the same requests one by one."""

import asyncio
import random
from pathlib import Path

import pytest

from stepahead import SamplingParams

from .drawn_lives import draw_ask, draw_options, live
from .paged_devices import one_thread  # noqa: F401
from .paged_engines import make_engine_folder, running
from .run_again import RunAgain

SEEDS = range(3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_engine_folder(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("capture", [None, RunAgain], ids=["", "graphs"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_company_and_the_way_things_go_change_nothing(
    folder: Path, seed: int, capture: type[RunAgain] | None
) -> None:
    rng = random.Random(seed)
    shared = [rng.randrange(3, 250) for _ in range(20)]
    asks = [draw_ask(rng, shared) for _ in range(16)]
    delays = [rng.choice([0.0, 0.0, 0.02, 0.1]) for _ in asks]
    async with running(folder, is_paged=False) as engine:
        expected = [await live(engine, ask) for ask in asks]

    async with running(folder, parts={"capture": capture}, **draw_options(rng)) as engine:
        said = await asyncio.gather(*map(live, [engine] * len(asks), asks, delays))
        await engine.generate([5, 6, 7], SamplingParams(max_tokens=8, ignore_eos=True))
        # By then the steps are done that those who left were still in.
        assert engine.stats().running == engine.stats().waiting == 0

    assert said == expected
