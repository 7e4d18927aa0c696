"""While an engine starts nothing is collected, which would cost a tenth of the start."""

import gc
from pathlib import Path

import pytest

from stepahead import ConfigError, EngineConfig
from stepahead.cli.runner import run, running_engine


def test_the_collector_works_again_once_the_engine_runs() -> None:
    async def collects() -> bool:
        async with running_engine(EngineConfig(device="simulated")):
            return gc.isenabled()

    assert run(collects())


def test_the_collector_works_again_after_an_engine_that_did_not_start(tmp_path: Path) -> None:
    async def start() -> None:
        config = EngineConfig(device="simulated", record=tmp_path / "absent" / "recording")
        async with running_engine(config):
            raise AssertionError("it was to fail")

    with pytest.raises(ConfigError):
        run(start())

    assert gc.isenabled()
