"""Logits processors of the embedding program by the CUDA device's code."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stepahead import ProcessedRows
from stepahead.gpu.cpu import open_cpu_device
from stepahead.gpu.device import Device
from stepahead.gpu.options import DeviceOptions
from stepahead.messages import Adjustments, StepDone

from .device_driver import Driver, call_at_once, generate, generate_drafted, make_row
from .paged_devices import open_paged
from .test_cpu_device import PROMPTS
from .tiny_models import VOCAB, make_folder


def only_even(logits: Tensor, rows: ProcessedRows) -> None:
    logits[:, 1::2].fill_(-torch.inf)


def no_token_twice(logits: Tensor, rows: ProcessedRows) -> None:
    seen = logits.new_zeros(len(logits), VOCAB + 1)
    seen.scatter_(1, rows.token_ids.long() % (VOCAB + 1), -torch.inf)
    logits += seen[:, :VOCAB]


def begin_again(logits: Tensor, rows: ProcessedRows) -> None:
    """Forgets what the model said, and all that was done to it."""
    logits.copy_(torch.arange(VOCAB, device=logits.device) * 0.01)


def break_down(logits: Tensor, rows: ProcessedRows) -> None:
    if "now" in rows.arguments:
        raise ValueError("out of order")


def spoil(logits: Tensor, rows: ProcessedRows) -> None:
    for row, argument in enumerate(rows.arguments):
        if argument == "now":
            logits[row].fill_(torch.nan)


def wait(logits: Tensor, rows: ProcessedRows) -> None:
    logits[0].max().item()


FUNCTIONS = (only_even, no_token_twice, begin_again, break_down, spoil, wait)
PROCESSORS = {function.__name__: function for function in FUNCTIONS}
WISHES = {
    "one": Adjustments(logits_processors=("only_even",)),
    "two, one after the other": Adjustments(logits_processors=("begin_again", "no_token_twice")),
    "behind penalties": Adjustments(
        repetition_penalty=3.0, frequency_penalty=1.0, logits_processors=("only_even",)
    ),
    "before bans": Adjustments(
        allowed_token_ids=tuple(range(10, 40)),
        bad_words=((39,), (38,)),
        logits_processors=("begin_again",),
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model"), "llama", initializer_range=0.5)


def on_processor(folder: Path) -> Device:
    options = DeviceOptions(model=str(folder), dtype="float32", num_blocks=64, block_size=4)
    return open_cpu_device(options, call_at_once, PROCESSORS)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", WISHES)
def test_processors_do_what_they_do_on_the_processor(
    folder: Path, name: str, temperature: float
) -> None:
    sampling: dict[str, Any] = {"temperature": temperature, "seed": 1, "adjustments": WISHES[name]}
    sampling |= {"min_end": 9, "banned_ids": (94, 36, 22)}
    said = []
    for device in (open_paged(folder, processors=PROCESSORS), on_processor(folder)):
        plain = generate(device, PROMPTS, 6, **sampling)
        said.append((plain, generate_drafted(device, PROMPTS, plain, wrong_every=3, **sampling)))
        device.close()

    assert said[0] == said[1]
    assert said[0][0] == said[0][1][0]


def run_two(device: Device, name: str) -> tuple[StepDone, StepDone]:
    """Two rows, of which the first meets a fault; and a third that does not, once it is gone."""
    driver = Driver(device)
    rows = [
        make_row(slot, PROMPTS[1], [slot], adjustments=Adjustments(logits_processors=(text,)))
        for slot, text in enumerate((f"{name}=now", f"{name}=later"))
    ]
    length = len(PROMPTS[1])
    first = driver.run([(0, 0, length, True), (1, 0, length, True)], rows)
    return first, driver.run([(0, 0, length, True)], [make_row(0, PROMPTS[1], [0])])


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("break_down", "the logits processor 'break_down' raised ValueError: out of order"),
        ("spoil", "the logits processor 'spoil' made logits that are not numbers"),
    ],
)
def test_a_processor_at_fault_fails_the_row_that_met_it(
    folder: Path, name: str, fault: str
) -> None:
    device = open_paged(folder, processors=PROCESSORS)
    first, then = run_two(device, name)
    device.close()

    assert [(failed.row, failed.error) for failed in first.failed] == [(0, fault)]
    assert first.token_ids.tolist() == [-1, then.token_ids[0]]


def test_a_processor_that_makes_the_host_wait_is_seen_where_that_is_forbidden(folder: Path) -> None:
    device = open_paged(folder, processors=PROCESSORS)
    first, _ = run_two(device, "wait")
    device.close()

    assert "'wait' raised Waited" in first.failed[0].error


def test_the_device_tells_which_processors_it_has(folder: Path) -> None:
    device = open_paged(folder, processors=PROCESSORS)
    device.close()

    assert device.facts.logits_processors == frozenset(PROCESSORS)
