"""R3, R4 and R6: how near single steps and kernels come to what the card does at best, and how long
it has nothing to do between steps."""

import asyncio
import time
from collections.abc import Iterator
from functools import partial

from ...gpu.cuda.shapes import shape_named
from ...gpu.roofline import Rates, decode_step_s
from .figure import Figure, LeftOut, Told
from .kernel_cases import KernelCase, Kernels
from .opened import BenchPlace, OpenShape
from .requests import equal
from .serving import follow, warm_up
from .steps import StepDriver
from .timing import seconds_each

_SETTLING = 8  # tokens that every row has before idle time is counted


def kernel_table(where: BenchPlace) -> Iterator[Told]:
    """R6: single kernels; one that fails takes no other along."""
    sizes, place = where.sizes, where.place
    for case in Kernels(shape_named(sizes.large), place.ops, place.device, sizes.kernels).cases():
        try:
            seconds = seconds_each(case.run, place.device, repeats=sizes.kernel_repeats)
        except Exception as error:  # of a kernel that this card does not take
            yield LeftOut.failed("R6", error, case.name)
        else:
            yield kernel_figure(case, seconds, where.rates)


def kernel_figure(case: KernelCase, seconds: float, rates: Rates) -> Figure:
    """By what bounds it: arithmetic or memory."""
    moving, computing = case.num_bytes / rates.bandwidth, case.flops / rates.flops_rate
    about = {"us": round(seconds * 1e6, 1)}
    if computing > moving:
        name, value, best = "rate_tflop_s", case.flops / seconds / 1e12, rates.flops_rate / 1e12
    else:
        name, value, best = "rate_gb_s", case.num_bytes / seconds / 1e9, rates.bandwidth / 1e9
    return Figure(run="R6", what=case.name, name=name, value=value, floor=best, about=about)


def step_table(shape: OpenShape) -> Iterator[Figure | LeftOut]:
    """R3: decode steps of rows of one length."""
    driver, steps = StepDriver(shape.device), shape.sizes.grid_steps
    all_rows, lengths = shape.sizes.grid[shape.name]
    for rows in all_rows:
        for length in lengths:
            what = f"{shape.name}, step of {rows} rows of {length:,}"
            if rows > shape.max_num_seqs or not driver.fits(rows, length, steps):
                yield LeftOut("R3", f"{what} does not fit the KV memory")
                continue
            seconds = driver.seconds_per_step(rows, length, steps=steps)
            floor = decode_step_s(shape.cost, shape.rates, rows, length + steps // 2)
            yield Figure(
                run="R3",
                what=what,
                name="step_ms",
                value=1e3 * seconds,
                floor=1e3 * floor,
                about={"tok_s": round(rows / seconds)},
            )


def idle_table(shape: OpenShape) -> Iterator[Figure]:
    """R4: the share of time in which the device has nothing to do, one and two steps ahead."""
    for rows in shape.sizes.idle_rows:
        for steps_in_flight in (1, 2):
            yield asyncio.run(_idle(shape, rows, steps_in_flight))


async def _idle(shape: OpenShape, rows: int, steps_in_flight: int) -> Figure:
    sizes, busy = shape.sizes, shape.where.busy
    asked = equal(rows, sizes.idle_prompt, sizes.idle_output, shape.device.facts.vocab_size)
    settled: set[int] = set()
    began = [0.0, 0.0]

    def came(row: int, count: int) -> None:
        if count >= _SETTLING and row not in settled:
            settled.add(row)
            if len(settled) == rows:
                busy.start()
                began[:] = time.perf_counter(), time.process_time()

    async with shape.engine(steps_in_flight=steps_in_flight) as engine:
        await warm_up(engine, sizes.idle_prompt)
        await asyncio.gather(
            *(follow(engine, one, partial(came, row)) for row, one in enumerate(asked))
        )
        steps = sizes.idle_output - _SETTLING
        step_s = (time.perf_counter() - began[0]) / steps
        host_s = (time.process_time() - began[1]) / steps
    return Figure(
        run="R4",
        what=f"{shape.name}, idle, {rows} rows, {steps_in_flight} steps in flight",
        name="idle_percent",
        value=100 * busy.stop(),
        about={"step_ms": round(1e3 * step_s, 3), "host_cpu_ms": round(1e3 * host_s, 3)},
    )
