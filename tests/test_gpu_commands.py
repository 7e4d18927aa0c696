"""`doctor --gpu` and `bench gpu` on the command line."""

import json
from pathlib import Path

import pytest
import torch

from .kernels import interpreter  # noqa: F401  # before any kernel: here they are interpreted

# isort: split
from stepahead.cli.main import main

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@NO_GPU
@pytest.mark.parametrize("command", [["doctor", "--gpu"], ["bench", "gpu"]])
def test_without_a_gpu_one_sentence_says_so(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("engine-cli: there is no GPU to measure: ")
    assert len(said.err.splitlines()) == 1


def test_what_is_measured_goes_to_a_file_that_later_results_are_compared_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "gpu.json")
    trial = ["bench", "gpu", "--device", "cpu", "--budget", "20"]  # time for the ceilings

    assert main([*trial, "--out", file]) == 0
    assert main([*trial, "--compare", file, "--json"]) == 0

    lines = capsys.readouterr().out.splitlines()
    told = [json.loads(line) for line in lines if line.startswith("{")]
    (first,) = [line for line in told if line.get("bench") == "gpu R0, copy within the memory"]
    assert first["floor_copy_gb_s"] == 4_300
    (ratio,) = [line for line in told if line.get("measure") == "copy_gb_s"]
    assert ratio["there"] > 0
    assert ratio["verdict"] in ("better", "worse", "equal")
