"""What is compiled for a GPU is compiled when a device is opened, and not while requests wait."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
OPTIONS: tuple[dict[str, object], ...] = (
    {},
    {"quantization": "int4", "num_host_blocks": 4},
    {"quantization": "int8", "kv_dtype": "fp8", "graph_capture_s": 0.0},
)


def looked_up(*arguments: object) -> list[Any]:
    """What `launches` prints for each argument."""
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    program = [sys.executable, "-m", "tests.kernels.launches", *map(json.dumps, arguments)]

    done = subprocess.run(program, env=environment, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_serving_launches_no_kernel_that_opening_has_not() -> None:
    assert looked_up(*OPTIONS) == [[], [], []]


def test_a_few_kinds_of_steps_launch_all_that_any_step_of_a_large_shape_does_to_attend() -> None:
    for beyond, known in looked_up(4096, 131_072):
        assert beyond == []
        large = [name for name in known if not name.startswith("merge_kernel")]
        assert len(large) <= 10  # a compiler takes about a second for each
        assert len(known) <= 30  # and less than half of that for one that merges
