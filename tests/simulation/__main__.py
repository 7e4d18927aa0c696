"""`make simulate`: lives of many seeds, on every processor; a failing one is shrunk and recorded.

python -m tests.simulation [--seeds N] [--first SEED] [--processes N]
"""

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from .draw import draw_script
from .life import Lived, Violation, live
from .report import report_failure

CHUNK = 20  # seeds that a process takes at once


def main() -> int:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2_000, help="how many lives")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--folder", type=Path, default=Path("."), help="for recordings")
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.seeds)
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    total, failing, began = Lived(), list[int](), time.monotonic()
    with ProcessPoolExecutor(given.processes) as pool:
        for lived, failed in pool.map(_live_all, chunks):
            total.add(lived)
            failing += failed
            if failing:
                pool.shutdown(cancel_futures=True)
                break
    print(_summary(total, given.seeds, time.monotonic() - began))
    if not failing:
        print("no violation")
        return 0
    print(f"seed {failing[0]} fails:", report_failure(failing[0], given.folder), sep="\n\n")
    return 1


def _live_all(seeds: range) -> tuple[Lived, list[int]]:
    """Run these lives until one fails."""
    total = Lived()
    for seed in seeds:
        try:
            total.add(live(draw_script(seed)))
        except Violation:
            return total, [seed]
    return total, []


def _summary(total: Lived, num_lives: int, seconds: float) -> str:
    ends = ", ".join(f"{count:,} {end}" for end, count in total.ends.most_common())
    return (
        f"{total.steps:,} steps, {total.messages:,} messages and {total.preemptions:,} preemptions "
        f"in {num_lives:,} lives, in {seconds:.0f} s\n"
        f"ends of requests: {ends}"
    )


if __name__ == "__main__":
    sys.exit(main())
