"""What an engine's start does not do: collect garbage, and import what it does not need."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from stepahead import ConfigError, EngineConfig
from stepahead.cli.runner import run, running_engine
from stepahead.gpu.native.compiling import NoCompiler
from stepahead.gpu.native.library import load_library


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


GENERATE = """
import sys
from stepahead.cli.main import main
assert main(["generate", "The capital of France is", "--max-tokens", "3", *sys.argv[1:]]) == 0
print(*sys.modules)
"""
HEAVY = {"torch", "transformers", "safetensors", "gguf", "huggingface_hub", "jinja2"}
UNUSED = {"rich", "prompt_toolkit", "llguidance", "xgrammar", "structlog"}
GREEDY = ["--temperature", "0"]
DRAWN = ["--temperature", "0.7", "--top-k", "50", "--top-p", "0.9", "--min-p", "0.01"]
PENALISED = ["--repetition-penalty", "1.1", "--frequency-penalty", "0.2", "--logit-bias", "260=-1"]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN, PENALISED], ids=["greedy", "drawn", "biased"])
def test_a_start_imports_nothing_that_the_default_model_does_not_need(sampling: list[str]) -> None:
    """`import torch` alone takes longer than the whole start without it."""
    try:
        is_fast = load_library().stepahead_rate() > 0
    except NoCompiler:
        is_fast = False
    if not is_fast:
        pytest.skip("the native decoder does not run here, and torch computes")

    done = subprocess.run(
        [sys.executable, "-c", GENERATE, *sampling], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert not (HEAVY | UNUSED) & set(done.stdout.splitlines()[-1].split())
