"""What is compiled for a GPU is compiled when a device is opened, and not while requests wait."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
OPTIONS: tuple[dict[str, object], ...] = (
    {},
    {"quantization": "int4"},
    {"quantization": "int8", "kv_dtype": "fp8", "graph_capture_s": 0.0},
)


def test_serving_launches_no_kernel_that_opening_has_not() -> None:
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    program = [sys.executable, "-m", "tests.kernels.launches", *map(json.dumps, OPTIONS)]

    done = subprocess.run(program, env=environment, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[], [], []]
