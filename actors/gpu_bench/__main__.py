"""Both commands where the command line's libraries are missing; see `--help`.

Exit code 0 done, 1 a kernel computes wrongly or a run failed, 2 there is no GPU.
"""

import argparse
import sys
from collections.abc import Sequence

from ...messages import ConfigError
from .screen import Screen, examine
from .session import BUDGET_S, Session

_DONE, _FAULT, _MISTAKE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        session = Session(given.budget, is_trial=given.device == "cpu")
    except ConfigError as error:
        print(f"gpu_bench: {error}", file=sys.stderr)
        return _MISTAKE
    screen = Screen(_write, as_json=given.json)
    if given.what in ("doctor", "all"):
        examine(session, screen)
    if given.what in ("bench", "all"):
        screen.figures(session.workloads())
    return _FAULT if screen.has_faults else _DONE


def _write(text: str) -> None:
    print(text, end="", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m stepahead.actors.gpu_bench",
        description="Measure the first GPU; every figure stands beside the best that is possible.",
    )
    parser.add_argument(
        "what",
        choices=("doctor", "bench", "all"),
        help="doctor: kernels against their references, single kernels and steps; "
        "bench: whole workloads; all: both within the budget",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument(
        "--budget",
        type=float,
        default=BUDGET_S,
        metavar="SECONDS",
        help=f"what does not fit is left out; {BUDGET_S:.0f} by default",
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
