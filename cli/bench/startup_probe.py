"""What `bench startup` runs: `generate` until its first token, and when it came to what.

    python -m stepahead.cli.bench.startup_probe SPAWNED PROMPT [engine options]

SPAWNED is the time of the system's monotonic clock at which the process was started.
"""

import sys
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

import click

from ...messages import SamplingParams
from ..options import EngineOptions, engine_options
from ..output import write_json
from ..runner import run, running_engine


class ImportClock:
    """Notes how long the import of one module takes: the first of the finders, and only once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.seconds = 0.0

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        started = time.monotonic()
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def timed(module: ModuleType) -> None:
                execute(module)
                self.seconds = time.monotonic() - started

            spec.loader.exec_module = timed  # type: ignore[method-assign]  # of this one loader
        return spec


async def probe(options: EngineOptions, prompt: str, spawned: float) -> dict[str, float]:
    """Points in seconds since the process was started; how long the import of torch took."""
    command_s = time.monotonic() - spawned
    torch = ImportClock("torch")
    sys.meta_path.insert(0, torch)
    async with running_engine(options.config()) as engine:
        ready_s = time.monotonic() - spawned
        params = SamplingParams(max_tokens=1, temperature=0)
        async for _ in engine.stream(prompt, params):
            break
        first_token_s = time.monotonic() - spawned
    return {
        "command_s": command_s,
        "import_torch_s": torch.seconds,
        "ready_s": ready_s,
        "first_token_s": first_token_s,
    }


@click.command()
@click.argument("spawned", type=float)
@click.argument("prompt")
@engine_options
def main(spawned: float, prompt: str, engine: EngineOptions) -> None:
    write_json(run(probe(engine, prompt, spawned)))


if __name__ == "__main__":
    main()
