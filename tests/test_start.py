"""What makes the start short: work beside the imports, and nothing that is not needed."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from stepahead import ConfigError, EngineConfig
from stepahead.cli.runner import run, running_engine
from stepahead.gpu.preload import preload_torch

LIBRARY = "libtorch_cpu"
linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def python(code: str, *options: str) -> str:
    """What code prints; `mapped()` tells whether torch's library is in the process."""
    survey = f"def mapped(): return {LIBRARY!r} in open('/proc/self/maps').read()"
    command = [sys.executable, *options, "-c", f"import sys\n{survey}\n{code}"]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


@linux_only
def test_the_library_is_linked_without_importing_torch_which_works_afterwards() -> None:
    code = """
from stepahead.gpu.preload import preload_torch
preload_torch().join()
print(mapped(), "torch" in sys.modules)
import torch
print(torch.ones(3).sum().item())
"""
    assert python(code).splitlines() == ["True False", "3.0"]


def test_nothing_is_preloaded_where_torch_is_there_already() -> None:
    import torch  # noqa: F401

    assert preload_torch() is None


def test_nothing_is_preloaded_where_torch_is_not_installed() -> None:
    root = Path(__file__).resolve().parent.parent
    code = f"sys.path = [p for p in sys.path if 'site-packages' not in p] + [{str(root)!r}]"
    call = "from stepahead.gpu.preload import preload_torch; print(preload_torch())"

    assert python(f"{code}\n{call}", "-S") == "None"


@linux_only
@pytest.mark.parametrize(
    "words",
    [["generate", "--help"], ["chat", "-h"], ["models"], ["generate", "--device=simulated"]],
)
def test_commands_that_compute_nothing_load_nothing(words: list[str]) -> None:
    code = f"from stepahead.cli.main import main; main({words!r})"

    assert python(f"{code}\nprint(mapped())").splitlines()[-1] == "False"


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
