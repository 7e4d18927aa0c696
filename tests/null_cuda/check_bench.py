"""What is run on a new GPU: all of it, as somebody would."""

import json
import subprocess
import sys

RUNS = {f"R{number}" for number in range(9)}
BENCH = """
import sys, torch
from stepahead.actors.gpu_bench.__main__ import main

torch.backends.cuda.enable_cudnn_sdp(False)  # transformers would; that library finds no GPU
sys.exit(main(["all", "--json"]))
"""


def test_every_run_of_the_bench_gives_figures_and_none_fails() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BENCH], capture_output=True, text=True, check=False
    )

    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1, done.stderr  # its kernels compute nothing, which is wrong
    assert [one for one in told if "failed" in one] == []
    figures = (one["bench"].split()[1] for one in told if "left_out" not in one)
    assert {figure.rstrip(",") for figure in figures} >= RUNS
