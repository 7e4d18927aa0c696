"""What `doctor --gpu` and `bench gpu` run, one after the other, within their time."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

from . import card_runs, peer_runs, whole_runs
from .budget import Budget
from .figure import Figure, LeftOut, Told
from .opened import BenchPlace, OpenShape, give_back, opened

Runs: TypeAlias = Callable[[OpenShape, Budget], Iterator[Told]]

_OPEN_S = 45.0  # seconds to make weights and capture graphs, at most
_PLAIN_OPEN_S = 15.0  # without graphs
_STEPS_S = 25.0  # R3 and R4 of a shape
_SAMPLES_S = 15.0  # R8
_PEER_S = 90.0  # R2 of transformers, with its weights and graphs


def card(where: BenchPlace, budget: Budget) -> Iterator[Told]:
    """R6, R3 and R4."""
    yield from _guarded("R6", partial(card_runs.kernel_table, where))
    for name in where.sizes.grid:
        yield from _on_shape(where, budget, name, _steps, needs_s=_OPEN_S + _STEPS_S, run="R3")


def workloads(where: BenchPlace, budget: Budget) -> Iterator[Told]:
    """R1, R2, R7, R8 and R5: what says most for its time comes first."""
    sizes = where.sizes
    yield from _on_shape(where, budget, sizes.small, _small, needs_s=_OPEN_S, run="R1")
    yield from _on_shape(where, budget, sizes.large, _large, needs_s=_OPEN_S, run="R1")
    peer = partial(peer_runs.peer_batches, where, sizes.equal_outputs[0])
    yield from _within(budget, "R2", "transformers", _PEER_S, peer)
    yield from _on_shape(where, budget, sizes.sampled, _sampled, needs_s=_OPEN_S, run="R8")
    for name in (sizes.small, sizes.large):
        yield from _on_shape(
            where, budget, name, _eager, needs_s=_PLAIN_OPEN_S, run="R1", has_graphs=False
        )


def _steps(shape: OpenShape, budget: Budget) -> Iterator[Told]:
    yield from _guarded("R3", partial(card_runs.step_table, shape))
    yield from _guarded("R4", partial(card_runs.idle_table, shape))


def _small(shape: OpenShape, budget: Budget) -> Iterator[Told]:
    seconds = whole_runs.mixed_seconds(shape)
    yield from _within(budget, "R1", shape.name, seconds, partial(whole_runs.mixed_batch, shape))
    alone = partial(whole_runs.mixed_batch, shape, steps_in_flight=1, note=", one step in flight")
    yield from _within(budget, "R1", f"{shape.name}, one step in flight", seconds, alone)


def _large(shape: OpenShape, budget: Budget) -> Iterator[Told]:
    """What is left for the peer and for R8 is not spent on R5."""
    sizes = shape.sizes
    yield from _small(shape, budget)
    for output in sizes.equal_outputs:
        seconds = whole_runs.equal_seconds(shape, output)
        run = partial(whole_runs.equal_batch, shape, output)
        yield from _within(budget, "R2", f"{shape.name}, answers of {output:,}", seconds, run)
    for tokens in sizes.prefixes:
        seconds = whole_runs.second_turn_seconds(shape, tokens)
        turns = partial(whole_runs.second_turn, shape, tokens)
        yield from _within(budget, "R7", f"{shape.name}, {tokens:,} tokens", seconds, turns)
    left = budget.left - _PEER_S - _OPEN_S - _SAMPLES_S
    yield from _guarded("R5", partial(whole_runs.full_server, shape, left))


def _sampled(shape: OpenShape, budget: Budget) -> Iterator[Told]:
    seconds = whole_runs.samples_seconds(shape)
    yield from _within(budget, "R8", shape.name, seconds, partial(whole_runs.many_samples, shape))


def _eager(shape: OpenShape, budget: Budget) -> Iterator[Told]:
    seconds = 2 * whole_runs.mixed_seconds(shape)
    eager = partial(whole_runs.mixed_batch, shape, note=", no graphs")
    yield from _within(budget, "R1", f"{shape.name}, no graphs", seconds, eager)


def _on_shape(
    where: BenchPlace,
    budget: Budget,
    name: str,
    runs: Runs,
    *,
    needs_s: float,
    run: str,
    has_graphs: bool = True,
) -> Iterator[Told]:
    """Runs on a shape that is opened for them, where there is time for that."""

    def on_shape() -> Iterator[Told]:
        give_back(where.place.device)  # of a run that failed, say
        with opened(where, name, has_graphs=has_graphs) as shape:
            yield opening_figure(shape)
            yield from runs(shape, budget)

    yield from _within(budget, run, name, needs_s, on_shape)


def opening_figure(shape: OpenShape) -> Figure:
    """How long a device took to open; there is no floor for that."""
    facts = shape.device.facts
    return Figure(
        run="R0",
        what=f"{shape.name}, opened",
        name="open_s",
        value=shape.open_s,
        about={
            "graphs": facts.num_graphs,
            "capture_s": round(facts.capture_s, 2),
            "kv_positions": facts.num_blocks * facts.block_size,
        },
    )


def _within(
    budget: Budget, run: str, what: str, seconds: float, make: Callable[[], Iterator[Told]]
) -> Iterator[Told]:
    why = budget.why_not(seconds)
    if why is not None:
        yield LeftOut(run, f"{what}: {why}")
    else:
        yield from _guarded(run, make)


def _guarded(run: str, make: Callable[[], Iterator[Told]]) -> Iterator[Told]:
    """What fails is told, and does not take the other runs along."""
    try:
        yield from make()
    except Exception as error:  # of a card that nobody has tried this on
        yield LeftOut.failed(run, error)
