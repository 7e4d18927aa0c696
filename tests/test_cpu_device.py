"""The processor device: results in order, failures in order, and a clean end."""

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from stepahead.gpu.cpu import CpuDevice, open_cpu_device
from stepahead.gpu.device import DeviceFacts
from stepahead.gpu.options import DeviceOptions
from stepahead.gpu.runner import StepRunner
from stepahead.messages import (
    ConfigError,
    RowMasks,
    SampleRows,
    StepDone,
    StepFailed,
    StepPlan,
)
from stepahead.messages.arrays import NO_INTS, NO_LONGS, frozen_ints, frozen_longs

from .device_driver import Driver, call_at_once, generate, generate_drafted, make_plan, make_row
from .tiny_models import make_folder

RESULT_S = 60  # longest wait for a step's result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model"), "llama", initializer_range=0.5)


def open_device(folder: Path, **options: object) -> CpuDevice:
    fields: dict[str, object] = {"dtype": "float32", "num_blocks": 64, "block_size": 4}
    return open_cpu_device(
        DeviceOptions(model=str(folder), **(fields | options)),  # type: ignore[arg-type]
        call_at_once,
    )


@pytest.fixture
def device(folder: Path) -> Iterator[CpuDevice]:
    device = open_device(folder)
    yield device
    device.close()


def test_weights_settle_once_behind_the_first_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[str] = []
    monkeypatch.setattr(
        StepRunner, "settle", lambda runner: settled.append(threading.current_thread().name)
    )
    device = open_device(folder)
    assert settled == []

    generate(device, [[3, 14, 15]], 3)
    device.close()

    assert settled == ["stepahead-settle"]


PROMPTS = [[3, 14, 15, 92, 65, 35], [27, 18, 28], [16, 18, 3, 39, 88, 74, 9, 89, 49, 1, 5]]


def test_facts_tell_what_was_found_out(device: CpuDevice) -> None:
    assert device.facts.max_model_len == 64
    assert device.facts.vocab_size == 96
    assert device.facts.eos_token_ids == {2}
    assert (device.facts.dtype, device.facts.device) == ("float32", "cpu")


@pytest.mark.parametrize("generic", [False, True])
def test_greedy_ids_equal_those_of_transformers(folder: Path, generic: bool) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = [
        model.generate(torch.tensor([p]), max_new_tokens=12, do_sample=False, eos_token_id=None)[
            0, len(p) :
        ].tolist()
        for p in PROMPTS
    ]
    device = open_device(folder, generic=generic)

    together = generate(device, PROMPTS, 12, chunk=4)
    alone = [generate(device, [prompt], 12)[0] for prompt in PROMPTS]
    device.close()

    assert together == expected
    assert alone == expected


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("wrong_every", [1, 3, 100])
def test_drafts_do_not_change_what_is_said(
    folder: Path, generic: bool, temperature: float, wrong_every: int
) -> None:
    device = open_device(folder, generic=generic)
    plain = generate(device, PROMPTS, 16, temperature=temperature, seed=4)

    drafted, steps = generate_drafted(
        device, PROMPTS, plain, wrong_every=wrong_every, temperature=temperature, seed=4
    )
    device.close()

    assert drafted == plain
    assert steps == {1: 15, 3: 5, 100: 3}[wrong_every]


def test_samples_do_not_depend_on_batch_and_chunks(device: CpuDevice) -> None:
    together = generate(device, PROMPTS, 10, chunk=2, temperature=1.0, seed=4)
    alone = [generate(device, [p], 10, temperature=1.0, seed=4)[0] for p in PROMPTS]

    assert together == alone
    assert together != generate(device, PROMPTS, 10, temperature=1.0, seed=5)


def test_a_row_reads_blocks_that_an_earlier_row_of_its_step_writes(device: CpuDevice) -> None:
    prefix, tail = [5, 6, 7, 8], [9, 10]
    driver = Driver(device)
    rows = [make_row(0, prefix + tail, [0, 1]), make_row(1, prefix + tail, [0, 2])]

    done = driver.run([(0, 0, 6, True), (1, 4, 2, True)], rows)

    assert done.token_ids[0] == done.token_ids[1]


def test_a_step_without_sampling_rows_gives_no_tokens(device: CpuDevice) -> None:
    done = Driver(device).run([(0, 0, 3, False)], [make_row(0, [1, 2, 3, 4], [0])])

    assert done.token_ids.tolist() == []


def test_early_ends_are_banned_while_the_position_is_below_min_end(device: CpuDevice) -> None:
    prompt = PROMPTS[0]
    free = generate(device, [prompt], 6)[0]

    held = generate(device, [prompt], 6, banned_ids=tuple(free[:2]), min_end=len(prompt) + 1)[0]

    assert held[0] not in free[:2]


def masked(plan: StepPlan, allowed: set[int], *, held: Sequence[int] = ()) -> StepPlan:
    """The plan, with a mask for its last row."""
    bits = np.zeros(96, dtype=np.bool_)
    bits[list(allowed)] = True
    words = np.packbits(bits, bitorder="little").view("<i4")
    rows = [] if held else [len(plan.slots) - 1]
    masks = RowMasks(frozen_longs(rows), frozen_ints(words), frozen_longs(held))
    fields = {name: getattr(plan, name) for name in StepPlan.__dataclass_fields__}
    return StepPlan(**(fields | {"masks": masks}))


def test_a_mask_allows_its_tokens_only_and_leaves_other_rows_alone(device: CpuDevice) -> None:
    driver = Driver(device)
    free = [generate(device, [prompt], 1)[0][0] for prompt in PROMPTS[:2]]
    rows = [
        make_row(slot, prompt, [2 * slot, 2 * slot + 1]) for slot, prompt in enumerate(PROMPTS[:2])
    ]
    plan = make_plan(1, [(0, 0, 6, True), (1, 0, 3, True)], rows)
    allowed = set(range(0, 96, 7)) - {free[1]}

    device.launch(masked(plan, allowed), driver.results.put)
    done = driver.results.get(timeout=RESULT_S)

    assert isinstance(done, StepDone)
    assert int(done.token_ids[0]) == free[0]
    assert int(done.token_ids[1]) in allowed


def test_a_held_row_is_sampled_when_its_mask_comes(device: CpuDevice) -> None:
    driver = Driver(device)
    plan = masked(make_plan(1, [(0, 0, 3, True)], [make_row(0, [1, 2, 3], [0])]), {7}, held=[0])
    assert plan.masks is not None

    device.launch(plan, driver.results.put)
    device.launch(make_plan(2, [(0, 3, 1, True)]), driver.results.put)
    assert driver.results.empty()
    device.sample(SampleRows(1, frozen_longs([0]), plan.masks.words, NO_LONGS))
    results = [driver.results.get(timeout=RESULT_S) for _ in range(2)]

    assert [result.step for result in results] == [1, 2]
    assert isinstance(results[0], StepDone)
    assert results[0].token_ids.tolist() == [7]


def test_a_device_that_closes_waits_for_no_masks(folder: Path) -> None:
    device = open_device(folder)
    driver = Driver(device)
    plan = masked(make_plan(1, [(0, 0, 3, True)], [make_row(0, [1, 2, 3], [0])]), {7}, held=[0])

    device.launch(plan, driver.results.put)
    device.close()

    assert isinstance(driver.results.get(timeout=RESULT_S), StepFailed)


def test_results_come_in_launch_order(device: CpuDevice) -> None:
    driver = Driver(device)
    plans = [make_plan(1, [(0, 0, 2, True)], [make_row(0, [1, 2], [0, 1, 2])])]
    plans += [make_plan(n, [(0, n, 1, True)]) for n in range(2, 9)]

    for plan in plans:
        device.launch(plan, driver.results.put)
    results = [driver.results.get(timeout=RESULT_S) for _ in plans]

    assert [result.step for result in results] == list(range(1, 9))
    assert all(isinstance(result, StepDone) for result in results)


def impossible_plan(step: int) -> StepPlan:
    """A plan whose slot does not exist."""
    return make_plan(step, [(10_000, 0, 1, True)])


def test_a_failed_step_takes_those_behind_it_along_and_no_later_one(folder: Path) -> None:
    calls: list[Callable[[], None]] = []
    arrived = threading.Semaphore(0)

    def post(call: Callable[[], None]) -> None:
        """An event loop that is busy: calls wait until the test runs them."""
        calls.append(call)
        arrived.release()

    device = open_cpu_device(
        DeviceOptions(model=str(folder), dtype="float32", num_blocks=64, block_size=4), post
    )
    results: list[StepDone | StepFailed] = []
    good = make_row(0, [1, 2], [0])

    for plan in (impossible_plan(1), make_plan(2, [(0, 0, 2, True)], [good])):
        device.launch(plan, results.append)
    for _ in range(2):
        assert arrived.acquire(timeout=RESULT_S)
    for call in list(calls):
        call()
    calls.clear()
    device.launch(make_plan(3, [(0, 0, 2, True)], [good]), results.append)
    assert arrived.acquire(timeout=RESULT_S)
    calls[0]()
    device.close()

    assert [type(result) for result in results] == [StepFailed, StepFailed, StepDone]
    assert [result.step for result in results] == [1, 2, 3]
    assert isinstance(results[1], StepFailed)
    assert "step 1" in results[1].error


def with_poisoned_token(folder: Path, copy: Path, token_id: int) -> Path:
    """The same model with an embedding that is not a number."""
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    weights = load_file(copy / "model.safetensors")
    weights["model.embed_tokens.weight"][token_id] = float("nan")
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    return copy


def test_nan_in_one_row_leaves_the_others_and_later_owners_of_its_blocks_alone(
    folder: Path, device: CpuDevice, tmp_path: Path
) -> None:
    expected = generate(device, [PROMPTS[2]], 6)[0]
    poisoned = open_device(with_poisoned_token(folder, tmp_path, token_id=90))
    driver = Driver(poisoned)

    done = driver.run(
        [(0, 0, 11, True), (1, 0, 3, True)],
        [make_row(0, PROMPTS[2], [0, 1, 2]), make_row(1, [4, 90, 7], [5])],
    )
    again = driver.run([(0, 0, 11, True)], [make_row(0, PROMPTS[2], [7, 6, 5, 8])])
    followed = driver.run([(0, 11, 1, True)])
    poisoned.close()

    assert done.token_ids.tolist() == [expected[0], -1]
    assert [failed.row for failed in done.failed] == [1]
    assert again.token_ids[0] == expected[0]
    assert followed.token_ids[0] == expected[1]


def test_closing_twice_is_closing_once_and_no_thread_is_left(folder: Path) -> None:
    before = threading.active_count()
    device = open_device(folder)

    device.close()
    device.close()

    assert threading.active_count() == before


def test_a_step_launched_on_a_closed_device_fails(folder: Path) -> None:
    device = open_device(folder)
    device.close()
    results: list[StepDone | StepFailed] = []

    device.launch(make_plan(1, []), results.append)

    assert isinstance(results[0], StepFailed)


def test_two_devices_live_side_by_side(folder: Path, device: CpuDevice) -> None:
    other = open_device(folder)

    first, second = generate(device, PROMPTS, 5), generate(other, PROMPTS, 5)
    other.close()

    assert first == second


def test_an_empty_plan_is_answered(device: CpuDevice) -> None:
    done = Driver(device).run([])

    assert done.token_ids.tolist() == NO_INTS.tolist()


def test_the_context_is_the_smallest_of_model_option_and_pool(folder: Path) -> None:
    def longest(**options: object) -> DeviceFacts:
        device = open_device(folder, **options)
        device.close()
        return device.facts

    assert longest(num_blocks=1000).max_model_len == 64
    assert longest(max_model_len=20).max_model_len == 20
    assert longest(num_blocks=3).max_model_len == 12
    assert longest(num_blocks=None, kv_memory=4 * 256 * 10).num_blocks == 10
    assert longest(num_blocks=None).num_blocks == 128 * 16


def test_too_little_memory_for_a_block_is_refused_with_numbers(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"1024 bytes.*given: 100"):
        open_device(folder, num_blocks=None, kv_memory=100)


@pytest.mark.parametrize("options", [{"num_blocks": 10**13}, {"num_slots": 10**12}])
def test_more_memory_than_there_is_is_refused_with_numbers(
    folder: Path, options: dict[str, int]
) -> None:
    with pytest.raises(ConfigError, match="do not fit the memory"):
        open_device(folder, **options)


def test_opening_changes_no_default_of_torch(folder: Path) -> None:
    before = (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled())

    open_device(folder).close()

    after = (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled())
    assert after == before
