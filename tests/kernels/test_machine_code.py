"""Every kernel compiles for sm_80 and sm_90 as it ships, and its machine code is fit.

Compiled in a process of its own: in this one Triton may be an interpreter.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from .interpreter import machine_code, norm

ROOT = Path(__file__).parents[2]


def test_every_build_is_fit_on_every_architecture_and_named_in_the_documentation(
    tmp_path: Path,
) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)

    gate = [sys.executable, "-m", "stepahead.gpu.kernels.gate"]
    done = subprocess.run(gate, env=environment, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1:4] for line in done.stdout.splitlines() if line.startswith("| `")]
    documented = (ROOT / "docs/kernels.md").read_text(encoding="utf-8").splitlines()
    assert rows == [line.split("|")[1:4] for line in documented if line.startswith("| `")]
    assert {row[2].strip() for row in rows} == {"80", "90"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stack_bytes": 8}, "spills"),
        ({"local_accesses": 1}, "spills"),
        ({"shared_bytes": 200_000}, "shared memory"),
        ({"registers": 255, "num_warps": 16}, "registers"),
        ({"wide_accesses": 0}, "128 bits"),
        ({"tensor_core_instructions": 0}, "no tensor-core instruction"),
        ({"warp_group_instructions": 0}, "of a warp group"),
        ({"idle_loops": 1}, "wait for memory"),
    ],
)
def test_code_that_must_not_ship_is_told_why(change: dict[str, Any], words: str) -> None:
    build = replace(norm.BUILDS[0], uses_tensor_cores=True, uses_warp_groups=True, loads_ahead=True)
    fit = machine_code.MachineCode(
        kernel="k",
        build="b",
        capability=80,
        num_warps=4,
        registers=128,
        shared_bytes=100_000,
        stack_bytes=0,
        local_accesses=0,
        tensor_core_instructions=2,
        warp_group_instructions=1,
        wide_accesses=1,
        idle_loops=0,
    )

    assert fit.faults(build) == []
    (fault,) = replace(fit, **change).faults(build)
    assert words in fault
