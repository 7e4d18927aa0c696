"""What the CUDA device's code tells of logits is what the processor's device tells."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from stepahead.gpu.device import Device
from stepahead.gpu.logprobs import likeliest, log_softmax_at
from stepahead.messages import LogprobsWanted, StepDone

from .device_driver import Driver, make_row
from .paged_devices import logprobs_of, open_paged
from .test_cpu_device import with_poisoned_token
from .test_device_logprobs import PROMPT, entries, open_device, run_prompt, wanted
from .tiny_models import VOCAB, make_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes = {"initializer_range": 0.5, "hidden_size": 64, "intermediate_size": 64}
    return make_folder(tmp_path_factory.mktemp("model"), "llama", head_dim=32, **changes)


def on_both(folder: Path, run: Callable[[Driver], Sequence[StepDone]]) -> list[list[StepDone]]:
    """The same on both devices."""
    devices: tuple[Device, ...] = (open_paged(folder, block_size=16), open_device(folder, "fast"))
    results = [list(run(Driver(device))) for device in devices]
    for device in devices:
        device.close()
    return results


def assert_told_alike(given: Sequence[StepDone], expected: Sequence[StepDone]) -> None:
    told, known = entries(given), entries(expected)
    assert sorted(told) == sorted(known)
    for position, own in told.items():
        assert [entry[0::2] for entry in own] == [entry[0::2] for entry in known[position]]
        values = [entry[1] for entry in known[position]]
        assert [entry[1] for entry in own] == pytest.approx(values, abs=2e-4)
    for one, other in zip(given, expected, strict=True):
        assert (one.logprobs is None) == (other.logprobs is None)
        if one.logprobs is not None and other.logprobs is not None:
            assert one.logprobs.tops.tolist() == other.logprobs.tops.tolist()
            assert one.logprobs.owners.tolist() == other.logprobs.owners.tolist()


@pytest.mark.parametrize("top", [0, 2, VOCAB + 3])
@pytest.mark.parametrize("chunk", [len(PROMPT), 5])
def test_prompts_and_samples_are_told_of_alike(folder: Path, chunk: int, top: int) -> None:
    def run(driver: Driver) -> list[StepDone]:
        results = run_prompt(driver, wanted(top), chunk, temperature=1.0, seed=3)
        ends = range(len(PROMPT), len(PROMPT) + 3)
        return [*results, *(driver.run([(0, end, 1, True)]) for end in ends)]

    assert_told_alike(*on_both(folder, run))


def test_rows_that_want_more_less_and_nothing_are_told_of_in_one_step(folder: Path) -> None:
    wishes = (
        LogprobsWanted(5),
        None,
        LogprobsWanted(1, (4, 90, 7)),
        LogprobsWanted(-1, (), 3, 2, 9),
    )

    def run(driver: Driver) -> list[StepDone]:
        rows = [make_row(slot, PROMPT, [slot], logprobs=own) for slot, own in enumerate(wishes)]
        return [driver.run([(slot, 0, len(PROMPT), True) for slot in range(4)], rows)]

    (given,), (expected,) = on_both(folder, run)
    assert given.logprobs is not None
    assert expected.logprobs is not None
    for name in ("owners", "positions", "tops", "counts", "token_ids", "ranks"):
        assert np.array_equal(getattr(given.logprobs, name), getattr(expected.logprobs, name))
    np.testing.assert_allclose(given.logprobs.values, expected.logprobs.values, atol=2e-4)


def test_prompts_are_told_of_in_pieces(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(driver: Driver) -> list[StepDone]:
        return run_prompt(driver, wanted(), len(PROMPT))

    monkeypatch.setattr(logprobs_of, "PIECE", 3 * VOCAB)

    assert_told_alike(*on_both(folder, run))


def test_what_is_banned_is_told_as_the_model_said_it(folder: Path) -> None:
    def run(driver: Driver) -> list[StepDone]:
        return run_prompt(driver, wanted(), len(PROMPT), min_end=99, banned_ids=tuple(range(90)))

    given, expected = on_both(folder, run)
    assert_told_alike(given, expected)
    assert int(given[0].token_ids[0]) >= 90
    assert entries(given)[len(PROMPT)][0][2] > 1


def test_every_draft_that_counts_is_told_of(folder: Path) -> None:
    def run(driver: Driver) -> list[StepDone]:
        first = run_prompt(driver, wanted(), len(PROMPT))
        said = [int(first[-1].token_ids[0])]
        for place in range(2):
            said.append(int(driver.run([(0, len(PROMPT) + place, 1, True)]).token_ids[0]))
        drafted = run_prompt(driver, wanted(), len(PROMPT))
        drafts = [said[1], (said[2] + 1) % VOCAB]
        return [*drafted, driver.run([(0, len(PROMPT), 3, True)], drafts=[drafts])]

    given, expected = on_both(folder, run)
    assert_told_alike(given, expected)
    assert max(entries(given)) == len(PROMPT) + 2


def test_a_slot_that_asked_before_does_not_ask_for_its_next_owner(folder: Path) -> None:
    def run(driver: Driver) -> list[StepDone]:
        return [*run_prompt(driver, wanted(), 5), *run_prompt(driver, None, len(PROMPT))]

    assert_told_alike(*on_both(folder, run))


def test_the_likeliest_of_equals_are_the_smaller_ids() -> None:
    raw = torch.tensor([[0.0, 2.0, -0.0, 2.0, -5.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
    chosen, asked = torch.tensor([2, 4]), torch.tensor([[4, 1], [0, 0]])

    ids, bits, ranks = logprobs_of.tell(raw, chosen, asked, 4).view(2, 3, 7).unbind(1)

    assert ids.tolist() == [[2, 1, 3, 0, 2, 4, 1], [4, 0, 1, 2, 3, 0, 0]]
    assert ranks.tolist() == [[3, 1, 1, 3, 3, 5, 1], [1] * 7]
    for row, values in zip(raw.numpy(), ids.tolist(), strict=True):
        assert values[1:5] == likeliest(row, 4).tolist()
    expected = [
        log_softmax_at(row, row[own]) for row, own in zip(raw.numpy(), ids.numpy(), strict=True)
    ]
    torch.testing.assert_close(
        bits.contiguous().view(torch.float32), torch.tensor(np.array(expected))
    )


def test_a_row_whose_logits_are_not_numbers_is_told_nothing_and_fails(
    folder: Path, tmp_path: Path
) -> None:
    def run(driver: Driver) -> list[StepDone]:
        return run_prompt(driver, wanted(), len(PROMPT))

    given, expected = on_both(with_poisoned_token(folder, tmp_path, PROMPT[6]), run)
    assert_told_alike(given, expected)
    assert given[-1].failed
    assert [one.row for one in given[-1].failed] == [one.row for one in expected[-1].failed]
    assert not entries(given)  # the head has the same weights
