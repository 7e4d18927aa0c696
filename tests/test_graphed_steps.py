"""Steps that a graph computes, on the CPU: what is captured is run again where it is replayed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from stepahead.messages import StepDone
from stepahead.messages.arrays import NO_INTS, frozen_ints, frozen_longs
from stepahead.messages.logprobs import LogprobsWanted

from .device_driver import Driver, generate, make_plan, make_row
from .paged_devices import ThreadStreams, TritonOps, open_paged
from .run_again import RunAgain
from .test_cpu_device import RESULT_S
from .tiny_models import make_folder

PROMPTS = [[5, 6, 7], [9, 8, 7, 6, 5], [11], [3, 1, 4, 1, 5, 9], [2, 7]]
LONGER = [prompt for prompt in PROMPTS if len(prompt) > 1][:3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model"), "llama", initializer_range=0.5)


@pytest.mark.parametrize(
    ("num_prompts", "sampling"),
    [
        (1, {}),
        (3, {"temperature": 1.0}),
        (5, {}),
        (3, {"temperature": 1.5, "top_p": 0.5}),
        (5, {"temperature": 1.5, "top_k": 3}),
        (2, {"temperature": 1.5, "min_p": 0.3}),
    ],
)
def test_graphed_steps_say_what_others_say_whatever_is_padding(
    folder: Path, num_prompts: int, sampling: dict[str, Any]
) -> None:
    prompts, capture = PROMPTS[:num_prompts], RunAgain()
    said = []
    for made in (None, lambda: capture):
        device = open_paged(folder, capture=made, num_slots=16)
        said.append(generate(device, prompts, 8, **({"seed": 3} | sampling)))
        device.close()

    assert said[0] == said[1]
    # For 8, 4, 2 and 1 rows, what computes and what samples in two ways; for all but one if they
    # share blocks.
    assert capture.captured == capture.warmed == 4 + 2 * 4 + 3
    of_one = sum(len(prompt) == 1 for prompt in prompts)
    assert capture.replayed == 2 * 7 + of_one  # what comes with longer prompts is eager


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numbers overflow as on a GPU
def test_kernels_leave_padding_alone(folder: Path) -> None:
    said = []
    for ops in (None, TritonOps()):
        device = open_paged(folder, ops=ops, capture=RunAgain, num_slots=16)
        said.append(generate(device, LONGER, 3))  # three rows, in a graph of four
        device.close()

    assert said[0] == said[1]


def test_steps_with_prompts_or_too_many_rows_run_eagerly(folder: Path) -> None:
    capture = RunAgain()
    device = open_paged(folder, capture=lambda: capture, num_slots=4)
    said = generate(device, LONGER, 4)  # three rows, and the largest graph has two
    device.close()
    plain = open_paged(folder, num_slots=4)
    expected = generate(plain, LONGER, 4)
    plain.close()

    assert said == expected
    assert capture.replayed == 0


def test_capturing_writes_nothing_that_a_sequence_reads(folder: Path) -> None:
    """The first sequence gets block 0, where a row of padding must not leave anything."""
    device = open_paged(folder, capture=RunAgain, num_slots=8)
    driver = Driver(device)
    rows = [make_row(slot, PROMPTS[slot], [slot, slot + 4]) for slot in range(3)]
    driver.run([(slot, 0, len(PROMPTS[slot]), True) for slot in range(3)], rows)
    graphed = driver.run([(0, 3, 1, True), (2, 1, 1, True)])
    device.close()
    plain = open_paged(folder, num_slots=8)
    driver = Driver(plain)
    driver.run([(slot, 0, len(PROMPTS[slot]), True) for slot in range(3)], rows)
    expected = driver.run([(0, 3, 1, True), (2, 1, 1, True)])
    plain.close()

    assert graphed.token_ids.tolist() == expected.token_ids.tolist()


APPENDED = {
    "none": ((), ()),
    "one for a row": ((0, 1), (9, 2)),
    "two for a row": ((0, 0), (9, 5)),
    "one for a row that is not in the step": ((0, 3), (9, 6)),
}


@pytest.mark.parametrize("appended", APPENDED.values(), ids=APPENDED)
def test_blocks_that_a_graphed_step_appends_are_where_it_looks_for_them(
    folder: Path, appended: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    """Blocks hold four positions, and the fifth is computed."""
    slots, blocks = appended
    said = []
    for made in (None, RunAgain):
        device = open_paged(folder, capture=made, num_slots=16)
        driver = Driver(device)
        rows = [make_row(slot, [5, 6, 7, 8], [4 * slot]) for slot in range(2)]
        told = [driver.run([(slot, 0, 4, True) for slot in range(2)], rows)]
        plan = replace(
            make_plan(2, [(slot, 4, 1, True) for slot in range(2)]),
            block_slots=frozen_longs(slots),
            block_indices=frozen_ints(
                [1 + slots[:place].count(s) for place, s in enumerate(slots)]
            ),
            block_ids=frozen_ints(blocks),
        )
        device.launch(plan, driver.results.put)
        done = driver.results.get(timeout=RESULT_S)
        assert isinstance(done, StepDone)
        told.append(done)
        told += [driver.run([(slot, at, 1, True) for slot in range(2)]) for at in range(5, 8)]
        said.append([done.token_ids.tolist() for done in told])
        device.close()

    assert said[0] == said[1]


def test_tokens_that_are_banned_at_first_are_banned_in_graphs_too_and_cost_nothing_later(
    folder: Path,
) -> None:
    """Of a prompt of three tokens, so the bans are over in front of the fourth of the answer."""
    banned, capture = tuple(range(0, 96, 2)), RunAgain()
    said = []
    for made in (None, lambda: capture):
        device = open_paged(folder, capture=made, num_slots=16)
        said.append(generate(device, [[5, 6, 7]], 12, min_end=6, banned_ids=banned))
        device.close()

    assert said[0] == said[1]
    (answer,) = said[1]
    assert all(token_id % 2 for token_id in answer[:3])
    assert not all(token_id % 2 for token_id in answer[3:])
    assert capture.replayed == 2 + 2 * 9  # one for each step, and one to sample without a ban


def test_an_answer_is_sampled_in_graphs_though_its_prompt_was_told_of(folder: Path) -> None:
    wanted, capture = LogprobsWanted(prompt_top=2, prompt_start=1, prompt_end=3), RunAgain()
    said = []
    for made in (None, lambda: capture):
        device = open_paged(folder, capture=made, num_slots=16)
        said.append(generate(device, [[5, 6, 7]], 6, logprobs=wanted))
        device.close()

    assert said[0] == said[1]
    assert capture.replayed == 2 * 5


class Noting(ThreadStreams):
    """Counts what is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.uploads = 0

    def upload(self, words: Tensor) -> Tensor:
        self.uploads += 1
        return super().upload(words)


def test_what_a_step_needs_for_its_sampling_is_sent_once(folder: Path) -> None:
    uploads = []
    for made in (None, RunAgain):
        streams = Noting()
        device = open_paged(folder, capture=made, streams=streams, num_slots=16)
        generate(device, [[5, 6, 7]], 8, temperature=1.0, typical_p=0.5)
        uploads.append(streams.uploads)
        device.close()

    assert uploads[0] == uploads[1]


def test_a_plan_without_rows_is_no_graph(folder: Path) -> None:
    capture = RunAgain()
    device = open_paged(folder, capture=lambda: capture, num_slots=16)

    done = Driver(device).run([])
    device.close()

    assert done.token_ids.tolist() == NO_INTS.tolist()
    assert capture.replayed == 0


def test_without_time_for_graphs_none_is_captured(folder: Path) -> None:
    capture = RunAgain()
    device = open_paged(folder, capture=lambda: capture, graph_capture_s=0.0)
    device.close()

    assert capture.captured == 0
    assert device.facts.num_graphs == 0


def test_the_device_tells_how_many_graphs_there_are_and_how_long_they_took(folder: Path) -> None:
    device = open_paged(folder, capture=RunAgain, num_slots=16)
    device.close()

    assert device.facts.num_graphs == 4
    assert device.facts.capture_s > 0
