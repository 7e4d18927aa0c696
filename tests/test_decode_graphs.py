"""Decode graphs: which sizes are captured, in which order and time, and which one serves a step."""

import gc
from collections.abc import Callable

import pytest

from stepahead.gpu.cuda.graphs import DecodeGraphs, GraphFacts, capture_order, graph_sizes


class NotingCapture:
    """Notes what was captured, and takes time for each as a clock of its own says."""

    def __init__(self, seconds: float = 1.0, num_bytes: int = 10) -> None:
        self.now = 0.0
        self.ran: list[int] = []  # sizes, whenever one is run
        self.calls: list[str] = []
        self.collects: list[bool] = []
        self._seconds = seconds
        self._free = 1_000
        self._num_bytes = num_bytes

    def run(self, rows: int) -> None:
        self.ran.append(rows)

    def clock(self) -> float:
        return self.now

    def warm_up(self, run: Callable[[], None]) -> None:
        self.calls.append("warm up")
        run()

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        self.calls.append("capture")
        self.collects.append(gc.isenabled())
        self.now += self._seconds
        self._free -= self._num_bytes
        run()
        size = self.ran[-1]
        return lambda: self.ran.append(-size)

    def bytes_free(self) -> int:
        return self._free


def captured(
    max_rows: int, budget_s: float = 100.0, seconds: float = 1.0
) -> tuple[DecodeGraphs, NotingCapture]:
    capture = NotingCapture(seconds)
    graphs = DecodeGraphs(capture.run, capture, graph_sizes(max_rows))
    graphs.capture_all(budget_s=budget_s, clock=capture.clock)
    return graphs, capture


@pytest.mark.parametrize(
    ("max_rows", "sizes"),
    [
        (1, [1]),
        (3, [1, 2, 4]),
        (8, [1, 2, 4, 8]),
        (20, [1, 2, 4, 8, 16, 24]),
        (600, [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16), 1_024]),
    ],
)
def test_sizes_are_fine_where_rows_are_few_and_hold_the_largest_step(
    max_rows: int, sizes: list[int]
) -> None:
    assert graph_sizes(max_rows) == sizes


def test_256_rows_have_35_sizes_and_512_have_51() -> None:
    assert len(graph_sizes(256)) == 35
    assert len(graph_sizes(512)) == 51


def test_the_largest_is_captured_first_then_halves_then_the_rest() -> None:
    assert capture_order([1, 2, 4, 8, 16, 24, 32]) == [32, 16, 8, 4, 2, 1, 24]
    assert capture_order([1, 2, 4, 8, 16, 24]) == [24, 8, 4, 2, 1, 16]


@pytest.mark.parametrize("max_rows", [1, 7, 100, 256, 512])
def test_every_size_is_captured_once_and_none_before_the_largest(max_rows: int) -> None:
    sizes = graph_sizes(max_rows)

    order = capture_order(sizes)

    assert sorted(order) == sizes
    assert order[0] == sizes[-1]


def test_every_capture_follows_a_run_of_the_same_size() -> None:
    _, capture = captured(8)

    assert capture.calls == ["warm up", "capture"] * 4
    assert capture.ran == [8, 8, 4, 4, 2, 2, 1, 1]


def test_a_step_is_served_by_the_least_graph_that_holds_it() -> None:
    graphs, _ = captured(20)

    assert [graphs.size_for(rows) for rows in (1, 2, 3, 5, 8, 9, 17, 24)] == [
        *(1, 2, 4, 8),
        *(8, 16, 24, 24),
    ]
    assert graphs.size_for(25) is None


def test_a_replay_is_of_the_size_that_was_asked_for() -> None:
    graphs, capture = captured(20)
    size = graphs.size_for(9)
    assert size is not None

    graphs.replay(size)

    assert capture.ran[-1] == -16


def test_capturing_ends_with_its_time_and_tells_what_is_left_out() -> None:
    graphs, _ = captured(32, budget_s=3.0)

    facts = graphs.facts
    assert facts.sizes == (8, 16, 32)
    assert facts.left_out == (1, 2, 4, 24)
    assert facts.seconds == 3.0
    assert facts.num_bytes == 30


def test_a_step_far_smaller_than_every_graph_runs_eagerly() -> None:
    graphs, _ = captured(32, budget_s=2.0)  # 32 and 16

    assert graphs.facts.sizes == (16, 32)
    assert [graphs.size_for(rows) for rows in (1, 7, 8, 17, 32)] == [None, None, 16, 32, 32]


def test_without_time_nothing_is_captured_and_every_step_runs_eagerly() -> None:
    graphs, capture = captured(8, budget_s=0.0)

    assert capture.ran == []
    assert graphs.size_for(8) is None


def test_nothing_is_collected_while_graphs_are_captured() -> None:
    _, capture = captured(4)

    assert capture.collects == [False] * 3
    assert gc.isenabled()


def test_what_cannot_be_captured_runs_eagerly_and_the_reason_is_told() -> None:
    capture = NotingCapture()

    def run(rows: int) -> None:
        if rows == 4:
            raise RuntimeError("out of memory\nFor debugging pass a flag")
        capture.run(rows)

    graphs = DecodeGraphs(run, capture, graph_sizes(16))
    facts = graphs.capture_all(budget_s=100.0, clock=capture.clock)

    assert facts.sizes == (8, 16)
    assert facts.left_out == (1, 2, 4)
    assert facts.fault == "4 rows: out of memory"
    assert graphs.size_for(1) == 8


def test_cleared_graphs_serve_nothing() -> None:
    graphs, _ = captured(4)

    graphs.clear()

    assert graphs.size_for(4) is None


def test_what_graphs_of_two_kinds_took_is_told_together() -> None:
    facts = GraphFacts(sizes=(1, 2), seconds=2.0, num_bytes=10)

    both = facts.beside(GraphFacts(sizes=(2,), seconds=1.0, num_bytes=5, fault="out of memory"))

    assert both == GraphFacts(sizes=(1, 2), seconds=3.0, num_bytes=15, fault="out of memory")


def test_only_the_sizes_that_are_named_are_captured() -> None:
    capture = NotingCapture()
    graphs = DecodeGraphs(capture.run, capture, [16, 4])
    graphs.capture_all(budget_s=100.0, clock=capture.clock)

    assert graphs.facts.sizes == (4, 16)
    assert [graphs.size_for(rows) for rows in (2, 5, 8, 16, 17)] == [4, None, 16, 16, None]
