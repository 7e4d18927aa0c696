"""What a GPU is measured by: its parts, and all runs tried out on the processor."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from .kernels import interpreter  # noqa: F401  # before any kernel: here they are interpreted

# isort: split
from stepahead.actors.gpu_bench import card_runs, peer, peer_runs, plans, whole_runs
from stepahead.actors.gpu_bench.budget import Budget
from stepahead.actors.gpu_bench.busy import BusyMeter, idle_share
from stepahead.actors.gpu_bench.card_runs import kernel_figure
from stepahead.actors.gpu_bench.figure import Figure, LeftOut, Told
from stepahead.actors.gpu_bench.kernel_cases import KernelCase
from stepahead.actors.gpu_bench.opened import BenchPlace, opened
from stepahead.actors.gpu_bench.requests import equal, mixed, num_outputs, samples
from stepahead.actors.gpu_bench.screen import Screen
from stepahead.actors.gpu_bench.session import BUDGET_S, Checked, Session
from stepahead.actors.gpu_bench.sizes import ON_GPU
from stepahead.actors.gpu_bench.steps import StepDriver
from stepahead.gpu.cuda.ops import TorchOps
from stepahead.gpu.cuda.shapes import SHAPES, shape_named
from stepahead.gpu.roofline import H200, Rates, cost_of

ROOT = Path(__file__).parents[1]
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


def figure(value: float, floor: float | None, name: str = "out_tok_s") -> Figure:
    return Figure(run="R1", what="a model", name=name, value=value, floor=floor)


def test_a_rate_is_a_share_of_its_floor_and_a_time_has_one() -> None:
    assert figure(20.0, 40.0).percent_of_floor == 50
    assert figure(40.0, 20.0, "step_ms").percent_of_floor == 50
    assert figure(40.0, None).percent_of_floor is None


def test_a_figure_stands_beside_its_floor_for_people_and_for_programs() -> None:
    measured = figure(25_000.0, 36_400.0)

    words = measured.text().split()
    assert words == ["R1", "a", "model", "25,000", "tok/s", "at", "best", "36,400", "69%"]
    assert measured.line() == {
        "bench": "gpu R1, a model",
        "out_tok_s": 25_000,
        "floor_out_tok_s": 36_400,
        "of_floor_percent": 68.7,
    }


@pytest.mark.parametrize(
    ("num_bytes", "flops", "name", "value", "floor"),
    [(10**9, 10**9, "rate_gb_s", 100, 1_000), (10**9, 10**12, "rate_tflop_s", 0.1 * 10**3, 500)],
)
def test_a_kernel_is_judged_by_what_bounds_it(
    num_bytes: int, flops: int, name: str, value: float, floor: float
) -> None:
    case = KernelCase("k", lambda: None, num_bytes, flops)

    found = kernel_figure(case, 0.01, Rates(bandwidth=1e12, flops_rate=5e14))

    assert (found.name, found.floor) == (name, floor)
    assert found.value == pytest.approx(value)


def test_idle_is_the_time_between_pieces_of_work() -> None:
    assert idle_share([(0.0, 1.0), (2.0, 3.0), (3.0, 4.0)]) == 0.25
    assert idle_share([(0.0, 1.0), (1.0, 2.0)]) == 0.0
    assert idle_share([]) == 0.0


def test_work_is_counted_only_while_the_meter_is_on() -> None:
    meter = BusyMeter(torch.device("cpu"))
    with meter.around():
        pass
    assert meter.stop() == 0.0

    meter.start()
    for _ in range(2):
        with meter.around():
            pass

    assert 0.0 < meter.stop() < 1.0


def test_the_requests_of_r1_are_those_of_nano_vllm() -> None:
    asked = mixed(ON_GPU.mixed, ON_GPU.mixed_bounds, SHAPES[ON_GPU.small].vocab_size)

    assert sum(len(one.prompt) for one in asked) == 142_827
    assert num_outputs(asked) == 133_966
    assert max(max(one.prompt) for one in asked) <= 10_000


def test_samples_begin_alike_and_go_on_apart() -> None:
    asked = samples(3, 64, shared=10, own=2, output=5, vocab_size=100)

    assert len({one.prompt[:10] for one in asked}) == 1
    assert len({one.prompt for one in asked}) == 3
    assert num_outputs(asked) == 3 * 64 * 5


def test_a_run_that_does_not_fit_the_time_that_is_left_is_left_out_with_the_reason() -> None:
    now = [0.0]
    budget = Budget(100.0, lambda: now[0])

    assert budget.why_not(100.0) is None
    now[0] = 70.0
    assert budget.why_not(31.0) == "it takes about 31 s, and 30 of the budget are left"


@pytest.fixture(scope="module")
def trial() -> BenchPlace:
    return Session(is_trial=True).where


def faults(told: list[Told]) -> list[str]:
    return [one.text() for one in told if isinstance(one, LeftOut)]


def test_every_run_on_single_steps_and_kernels_gives_figures(trial: BenchPlace) -> None:
    told = list(plans.card(trial, Budget(600.0)))

    assert faults(told) == []
    figures = [one for one in told if isinstance(one, Figure)]
    assert {one.run for one in figures} == {"R0", "R3", "R4", "R6"}
    assert all(one.value > 0 and one.floor for one in figures if one.run in ("R3", "R6"))
    assert all(0 <= one.value < 100 for one in figures if one.run == "R4")


def test_a_kernel_that_fails_takes_no_other_along(trial: BenchPlace) -> None:
    class Broken(TorchOps):
        @staticmethod
        def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("out of resource: shared memory")

    place = replace(trial.place, ops=Broken())

    told = list(card_runs.kernel_table(replace(trial, place=place)))

    assert faults(told) == [
        "R6  failed: silu and product, 16 tokens: RuntimeError: out of resource: shared memory"
    ]
    assert len(told) > 5


def test_every_whole_workload_gives_figures(trial: BenchPlace) -> None:
    told = list(plans.workloads(trial, Budget(600.0)))

    assert faults(told) == []
    figures = [one for one in told if isinstance(one, Figure)]
    assert {one.run for one in figures} == {"R0", "R1", "R2", "R5", "R7", "R8"}
    assert all(one.value > 0 and one.floor for one in figures if one.run != "R0")
    assert any("transformers" in one.what for one in figures)


def test_a_peer_that_does_not_get_done_is_given_up(trial: BenchPlace) -> None:
    config = shape_named("tiny")
    other = peer.Peer(config, trial.place.device)

    with pytest.raises(TimeoutError, match="of 2 answers are there"):
        other.seconds(equal(2, 4, 200, config.vocab_size), is_async=False, within_s=0.0)


def test_what_is_given_up_is_cancelled_and_not_computed_to_its_end() -> None:
    cancelled: list[str] = []
    manager = SimpleNamespace(
        add_requests=lambda inputs, max_new_tokens: ["one", "two"],
        cancel_request=cancelled.append,
    )

    with pytest.raises(TimeoutError, match="0 of 2 answers are there"):
        peer.answers(manager, [[1], [2]], 1_000, until=0.0)

    assert cancelled == ["one", "two"]


def test_a_transformers_without_continuous_batching_is_left_out(
    trial: BenchPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer.Peer(shape_named("tiny"), trial.place.device)  # whatever else it imports is there
    older = ModuleType("transformers.generation")
    monkeypatch.setitem(sys.modules, "transformers.generation", older)

    (told,) = peer_runs.peer_batches(trial, 8)

    assert isinstance(told, LeftOut)
    assert "transformers is not there to compare with" in str(told)


def test_without_time_every_run_is_left_out_and_none_fails(trial: BenchPlace) -> None:
    told = list(plans.workloads(trial, Budget(0.0)))

    assert all(isinstance(one, LeftOut) and not one.is_fault for one in told)


def test_at_half_of_what_an_h200_can_do_all_but_r5_fits_the_budget() -> None:
    """R5 takes what is left. Opening is counted at its most, the command's own start not at all."""

    def shape(name: str) -> Any:
        facts = SimpleNamespace(vocab_size=SHAPES[name].vocab_size)
        return SimpleNamespace(
            cost=cost_of(SHAPES[name]),
            rates=H200,
            sizes=ON_GPU,
            device=SimpleNamespace(facts=facts),
            max_num_seqs=ON_GPU.max_num_seqs[name],
        )

    small, large, sampled = (shape(name) for name in (ON_GPU.small, ON_GPU.large, ON_GPU.sampled))
    seconds = 3 * plans._OPEN_S + plans._PEER_S
    seconds += 2 * (whole_runs.mixed_seconds(small) + whole_runs.mixed_seconds(large))
    seconds += sum(whole_runs.equal_seconds(large, output) for output in ON_GPU.equal_outputs)
    seconds += sum(whole_runs.second_turn_seconds(large, n) for n in ON_GPU.prefixes)
    seconds += whole_runs.samples_seconds(sampled)

    assert seconds < BUDGET_S


def test_steps_that_do_not_fit_the_memory_are_not_tried(trial: BenchPlace) -> None:
    with opened(trial, "tiny") as shape:
        driver = StepDriver(shape.device)

        assert driver.fits(1, 20, 3)
        assert not driver.fits(1, shape.device.facts.max_model_len, 3)


def test_a_run_that_fails_is_told_and_the_next_one_runs() -> None:
    def fails() -> Iterator[Told]:
        raise RuntimeError("out of memory\nat some length")
        yield

    told = list(plans._guarded("R1", fails))
    lines: list[str] = []
    screen = Screen(lines.append, as_json=True)
    screen.figures(told)

    assert screen.has_faults
    assert json.loads(lines[0]) == {
        "bench": "gpu R1",
        "failed": "RuntimeError: out of memory",
    }


def test_kernels_that_compute_wrongly_are_named() -> None:
    lines: list[str] = []
    screen = Screen(lines.append, as_json=False)

    screen.checked(Checked(9, 40.0, ("decode, bfloat16: 230% of the difference",)))

    assert screen.has_faults
    assert "8 of 9 checks" in lines[0]
    assert "! decode, bfloat16: 230%" in lines[0]


ALONE = """
import sys
BLOCKED = {"click", "typer", "rich", "prompt_toolkit", "pygments", "wcwidth", "gguf", "uvloop"}
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{name} is not installed")
sys.meta_path.insert(0, Missing())
import importlib, pkgutil
import stepahead.gpu.cuda, stepahead.gpu.kernels
for package in (stepahead.gpu.cuda, stepahead.gpu.kernels):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
from stepahead.actors.gpu_bench.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def alone(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run where the command line's libraries and gguf are missing, behind the import of all that
    a GPU may need."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-c", ALONE, *arguments],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_it_needs_nothing_of_the_command_line() -> None:
    done = alone("all", "--device", "cpu", "--json", "--budget", "60")

    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0]["bench"] == "gpu card"
    assert {"R0", "R6"} <= {line["bench"].split()[1].rstrip(",") for line in lines}


@NO_GPU
def test_without_a_gpu_it_says_so_in_one_sentence() -> None:
    done = alone("doctor")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gpu_bench: there is no GPU to measure: ")
    assert len(done.stderr.splitlines()) == 1
