"""How long a fresh process takes to its first answer, and where that time goes.

`engine-cli generate` itself, timed from outside; beside it the same start in a process that tells
when it came to what (`startup_probe`). Files are in the page cache after the warm-up.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from ..mistake import Mistake
from ..options import EngineOptions
from ..runner import progress
from .measurement import Measurement, Row

PROMPT = "The capital of France is"
_ONE_TOKEN = ("--max-tokens", "1", "--temperature", "0")


def measure_startup(options: EngineOptions, runs: int) -> Measurement:
    """A warm-up, then processes one after the other."""
    words = options.words()
    with progress(f"a fresh process, {runs} times after a warm-up"):
        rows = [{**_generate(words), **_probe(words)} for _ in range(runs + 1)]
    about = {"model": options.model, "prompt": PROMPT}
    return Measurement("startup", about, rows[1:], warm_up=rows[0])


def _generate(words: Sequence[str]) -> Row:
    """Seconds until the command has answered, and until it has ended."""
    command = [sys.executable, "-m", "stepahead", "generate", PROMPT, *_ONE_TOKEN, *words]
    spawned = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment()
    )
    assert process.stdout is not None
    process.stdout.read(1)
    answered = time.monotonic()
    _finish(process)
    return {"first_answer_s": answered - spawned, "exit_s": time.monotonic() - spawned}


def _probe(words: Sequence[str]) -> Row:
    """Seconds since the process was started until each point of its way to the first token."""
    command = [sys.executable, "-m", "stepahead.cli.bench.startup_probe"]
    spawned = time.monotonic()
    process = subprocess.Popen(
        [*command, str(spawned), PROMPT, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(),
    )
    points: dict[str, float] = json.loads(_finish(process))
    return points | {"all_but_torch_s": points["first_token_s"] - points["import_torch_s"]}


def _environment() -> dict[str, str]:
    """This process's; but bytecode is kept, as it is of what pip installs."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def _finish(process: "subprocess.Popen[bytes]") -> str:
    """What is left of the output; what went wrong there goes wrong here."""
    said, complaint = process.communicate()
    if process.returncode:
        last = complaint.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise Mistake(f"the process that was to be measured failed: {last[-1]}")
    return said.decode()
