"""The CUDA device's code on the CPU: what every device does, with results that come late."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stepahead.gpu.cpu import CpuDevice
from stepahead.messages import Adjustments, SampleRows, StepDone, StepFailed, ToldTokens
from stepahead.messages.arrays import NO_INTS, NO_LONGS, frozen_ints, frozen_longs
from stepahead.messages.token_bias import TokenBias

from .device_driver import Driver, generate, generate_drafted, make_plan, make_row
from .paged_devices import (
    CudaDevice,
    OpaqueOps,
    PagedDecoder,
    StepRunner,
    ThreadStreams,
    TritonOps,
    one_thread,  # noqa: F401
    open_paged,
)
from .test_cpu_device import (
    PROMPTS,
    RESULT_S,
    impossible_plan,
    masked,
    open_device,
    with_poisoned_token,
)
from .tiny_models import FAMILIES, make_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model"), "llama", initializer_range=0.5)


@pytest.fixture
def device(folder: Path) -> Iterator[CudaDevice]:
    device = open_paged(folder)
    yield device
    device.close()


def test_facts_tell_what_was_found_out(device: CudaDevice) -> None:
    assert device.facts.max_model_len == 64
    assert device.facts.vocab_size == 96
    assert device.facts.eos_token_ids == {2}
    assert device.facts.dtype == "float32"


def test_greedy_ids_equal_those_of_transformers(folder: Path, device: CudaDevice) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = [
        model.generate(torch.tensor([p]), max_new_tokens=12, do_sample=False, eos_token_id=None)[
            0, len(p) :
        ].tolist()
        for p in PROMPTS
    ]

    assert generate(device, PROMPTS, 12, chunk=4) == expected
    assert [generate(device, [prompt], 12)[0] for prompt in PROMPTS] == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_says_what_it_says_on_the_processor(family: str, tmp_path: Path) -> None:
    model_type, changes = FAMILIES[family]
    folder = make_folder(tmp_path, model_type, **changes)
    said = []
    for device in (open_paged(folder), open_device(folder)):
        said.append(generate(device, PROMPTS, 6, chunk=4))
        said.append(generate(device, PROMPTS, 6, temperature=0.8, seed=3))
        device.close()

    assert said[:2] == said[2:]


WISHES: dict[str, dict[str, Any]] = {
    "cuts": {"top_k": 9, "top_p": 0.9, "min_p": 0.02},
    "typical": {"typical_p": 0.6},
    "penalties": {"adjustments": Adjustments(repetition_penalty=1.3, presence_penalty=0.5)},
    "counts": {"adjustments": Adjustments(frequency_penalty=-8.0)},
    "biases": {"adjustments": Adjustments(logit_bias=TokenBias({3: 5.0, 4: -np.inf}))},
    "allowed ids": {"adjustments": Adjustments(allowed_token_ids=tuple(range(40, 60)))},
    "bad words": {"adjustments": Adjustments(bad_words=((35,), (67, 21), (55, 29)))},
    "n-grams": {"adjustments": Adjustments(no_repeat_ngram_size=1)},
    "an end that is banned": {"min_end": 15, "banned_ids": tuple(range(0, 96, 2))},
}


@pytest.fixture(scope="module")
def processor(folder: Path) -> Iterator[CpuDevice]:
    device = open_device(folder)
    yield device
    device.close()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", WISHES)
def test_what_a_request_wishes_is_what_it_gets_on_the_processor(
    device: CudaDevice, processor: CpuDevice, name: str, temperature: float
) -> None:
    plain: dict[str, Any] = {"temperature": temperature, "seed": 4}
    sampling = plain | WISHES[name]
    expected = generate(processor, PROMPTS, 6, **sampling)

    assert generate(device, PROMPTS, 6, **sampling) == expected
    drafted, _ = generate_drafted(device, PROMPTS, expected, wrong_every=3, **sampling)
    assert drafted == expected
    cuts_nothing = temperature == 0 and name in ("cuts", "typical")
    assert cuts_nothing or generate(processor, PROMPTS, 6, **plain) != expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_kernels_say_what_their_references_say(folder: Path, temperature: float) -> None:
    sampling: dict[str, object] = {"temperature": temperature, "seed": 4}
    said = []
    for ops in (TritonOps(), OpaqueOps()):
        device = open_paged(folder, ops=ops)
        said.append(generate(device, PROMPTS[:2], 3, chunk=4, **sampling))
        device.close()

    assert said[0] == said[1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("wrong_every", [1, 3, 100])
def test_drafts_do_not_change_what_is_said(
    device: CudaDevice, temperature: float, wrong_every: int
) -> None:
    plain = generate(device, PROMPTS, 16, temperature=temperature, seed=4)

    drafted, steps = generate_drafted(
        device, PROMPTS, plain, wrong_every=wrong_every, temperature=temperature, seed=4
    )

    assert drafted == plain
    assert steps == {1: 15, 3: 5, 100: 3}[wrong_every]


def test_samples_do_not_depend_on_batch_and_chunks(device: CudaDevice) -> None:
    together = generate(device, PROMPTS, 10, chunk=2, temperature=1.0, seed=4)
    alone = [generate(device, [p], 10, temperature=1.0, seed=4)[0] for p in PROMPTS]

    assert together == alone
    assert together != generate(device, PROMPTS, 10, temperature=1.0, seed=5)
    assert together != generate(device, PROMPTS, 10, temperature=1.0, seed=4, index=1)


def test_a_row_reads_blocks_that_an_earlier_row_of_its_step_writes(device: CudaDevice) -> None:
    prefix, tail = [5, 6, 7, 8], [9, 10]
    rows = [make_row(0, prefix + tail, [0, 1]), make_row(1, prefix + tail, [0, 2])]

    done = Driver(device).run([(0, 0, 6, True), (1, 4, 2, True)], rows)

    assert done.token_ids[0] == done.token_ids[1]


def test_a_step_without_sampling_rows_gives_no_tokens(device: CudaDevice) -> None:
    done = Driver(device).run([(0, 0, 3, False)], [make_row(0, [1, 2, 3, 4], [0])])

    assert done.token_ids.tolist() == []


def test_an_empty_plan_is_answered(device: CudaDevice) -> None:
    assert Driver(device).run([]).token_ids.tolist() == NO_INTS.tolist()


def test_appended_blocks_and_told_tokens_reach_the_rows_they_are_for(device: CudaDevice) -> None:
    said = generate(device, [PROMPTS[0]], 8)[0]
    driver = Driver(device)
    driver.run([(3, 0, 6, True)], [make_row(3, PROMPTS[0], [9, 4])])
    plan = make_plan(2, [(3, 6, 5, True)])
    fields = {name: getattr(plan, name) for name in type(plan).__dataclass_fields__}
    fields |= {
        "told": ToldTokens(
            frozen_longs([3]), frozen_ints([7]), frozen_ints([4]), frozen_ints(said[1:5])
        ),
        "block_slots": frozen_longs([3]),
        "block_indices": frozen_ints([2]),
        "block_ids": frozen_ints([7]),
    }

    device.launch(type(plan)(**fields), driver.results.put)
    done = driver.results.get(timeout=RESULT_S)

    assert isinstance(done, StepDone)
    assert done.token_ids.tolist() == [said[5]]


def test_a_mask_allows_its_tokens_only_and_leaves_other_rows_alone(device: CudaDevice) -> None:
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


def test_a_held_row_is_sampled_when_its_mask_comes(device: CudaDevice) -> None:
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


def test_a_void_mask_lets_a_held_row_say_anything(device: CudaDevice) -> None:
    driver = Driver(device)
    plan = masked(make_plan(1, [(0, 0, 3, True)], [make_row(0, [1, 2, 3], [0])]), {7}, held=[0])

    device.launch(plan, driver.results.put)
    device.sample(SampleRows(1, NO_LONGS, NO_INTS, frozen_longs([0])))

    assert isinstance(driver.results.get(timeout=RESULT_S), StepDone)


def test_a_device_that_closes_waits_for_no_masks(folder: Path) -> None:
    device = open_paged(folder)
    driver = Driver(device)
    plan = masked(make_plan(1, [(0, 0, 3, True)], [make_row(0, [1, 2, 3], [0])]), {7}, held=[0])

    device.launch(plan, driver.results.put)
    device.close()

    assert isinstance(driver.results.get(timeout=RESULT_S), StepFailed)


class Busy:
    """An event loop that is busy: what is posted waits until it is run."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self._arrived = threading.Semaphore(0)

    def post(self, call: Callable[[], None]) -> None:
        self.calls.append(call)
        self._arrived.release()

    def run(self, count: int) -> None:
        """Run the next calls, once they are there."""
        for _ in range(count):
            assert self._arrived.acquire(timeout=RESULT_S)
            self.calls.pop(0)()

    def wait(self, count: int) -> None:
        for _ in range(count):
            assert self._arrived.acquire(timeout=RESULT_S)
        for _ in range(count):
            self._arrived.release()


@pytest.mark.parametrize("is_late", [False, True])
def test_a_failed_step_takes_those_behind_it_along_and_no_later_one(
    folder: Path, is_late: bool
) -> None:
    """Whether it is found when it is queued, or only when the device gets to it."""
    ops, loop = Breaking(), Busy()
    device = open_paged(folder, post=loop.post, ops=ops)
    results: list[StepDone | StepFailed] = []
    good = make_row(0, [1, 2], [0])
    ops.breaks = is_late

    bad = make_plan(1, [(0, 0, 2, True)], [good]) if is_late else impossible_plan(1)
    for plan in (bad, make_plan(2, [(0, 0, 2, True)], [good])):
        device.launch(plan, results.append)
    loop.wait(2)
    ops.breaks = False
    loop.run(2)
    device.launch(make_plan(3, [(0, 0, 2, True)], [good]), results.append)
    loop.run(1)
    device.close()

    assert [type(result) for result in results] == [StepFailed, StepFailed, StepDone]
    assert [result.step for result in results] == [1, 2, 3]
    assert isinstance(results[1], StepFailed)
    assert "step 1" in results[1].error


class Breaking(OpaqueOps):
    """Fails in the middle of a layer for as long as it is told to."""

    breaks = False

    def __init__(self) -> None:
        super().__init__()
        self.given: list[weakref.ref[torch.Tensor]] = []  # to each call that failed

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        if self.breaks:
            self.given.append(weakref.ref(gate_up))
            raise ValueError("a kernel is broken")
        result: torch.Tensor = super().__getattr__("silu_mul")(gate_up)
        return result


class AtOnce(ThreadStreams):
    """Runs work when it is queued, as a GPU's streams do with what launches its kernels."""

    def run(self, work: Callable[[], None]) -> None:
        with torch.inference_mode():
            work()


def test_what_is_launched_behind_a_step_that_could_not_be_queued_is_not_computed(
    folder: Path,
) -> None:
    ops, loop = Breaking(), Busy()
    device = open_paged(folder, post=loop.post, ops=ops, streams=AtOnce())
    results: list[StepDone | StepFailed] = []
    ops.breaks = True
    for step in (1, 2, 3):
        plan = make_plan(step, [(0, 0, 2, True)], [make_row(0, [1, 2], [0])])
        device.launch(plan, results.append)
    loop.run(3)
    device.close()

    assert [type(result) for result in results] == [StepFailed] * 3
    assert len(ops.given) == 1


def test_a_step_that_fails_gives_back_what_it_had_at_once(folder: Path) -> None:
    """Not only when something is collected: the steps that follow want the memory."""
    ops = Breaking()
    device = open_paged(folder, ops=ops)
    ops.breaks = True
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(RuntimeError, match="a kernel is broken"):
            Driver(device).run([(0, 0, 2, True)], [make_row(0, [1, 2], [0])])
        kept = [reference() for reference in ops.given]
    finally:
        gc.enable()
    device.close()

    assert kept == [None]


def test_a_skipped_step_still_changes_the_tables(folder: Path) -> None:
    loop = Busy()
    device = open_paged(folder, post=loop.post)
    results: list[StepDone | StepFailed] = []
    expected = generate_one(folder)

    device.launch(impossible_plan(1), results.append)
    device.launch(
        make_plan(2, [(0, 0, 6, True)], [make_row(0, PROMPTS[0], [0, 1])]), results.append
    )
    loop.run(2)
    device.launch(make_plan(3, [(0, 0, 6, True)]), results.append)
    loop.run(1)
    device.close()

    assert isinstance(results[2], StepDone)
    assert results[2].token_ids.tolist() == expected


def generate_one(folder: Path) -> list[int]:
    device = open_paged(folder)
    said = generate(device, [PROMPTS[0]], 1)[0]
    device.close()
    return said


@pytest.mark.parametrize(
    ("rows", "new_rows"),
    [
        ([(0, 60, 5, True)], []),
        ([(0, -1, 2, True)], []),
        ([(-1, 0, 1, True)], []),
        ([(0, 0, 1, True)], [make_row(128, [1], [0])]),
        ([(0, 0, 1, True)], [make_row(0, [1], [64])]),
        ([(0, 0, 1, True)], [make_row(0, [1], [0] * 17)]),
        ([(0, 0, 1, True)], [make_row(0, [96], [0])]),
        ([(0, 0, 1, True)], [make_row(0, [1] * 66, [0])]),
    ],
)
def test_what_a_gpu_would_write_out_of_bounds_fails_before_it_is_sent(
    device: CudaDevice, rows: list[tuple[int, int, int, bool]], new_rows: list[object]
) -> None:
    with pytest.raises(RuntimeError, match=r"step 1 failed: (Index|Value)Error"):
        Driver(device).run(rows, new_rows)  # type: ignore[arg-type]  # rows of no type in a table


def test_nan_in_one_row_leaves_the_others_and_later_owners_of_its_blocks_alone(
    folder: Path, device: CudaDevice, tmp_path: Path
) -> None:
    expected = generate(device, [PROMPTS[2]], 6)[0]
    poisoned = open_paged(with_poisoned_token(folder, tmp_path, token_id=90))
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
    assert "not numbers" in done.failed[0].error
    assert again.token_ids[0] == expected[0]
    assert followed.token_ids[0] == expected[1]


def test_what_cannot_be_had_yet_fails_its_own_row_and_says_so(device: CudaDevice) -> None:
    driver = Driver(device)
    wishes = Adjustments(logits_processors=("shout",))
    rows = [make_row(0, [1, 2], [0], adjustments=wishes), make_row(1, [3], [1])]

    done = driver.run([(0, 0, 1, False), (1, 0, 1, True)], rows)
    then = driver.run([(0, 1, 1, True), (1, 1, 1, True)])
    last = driver.run([(0, 0, 1, True)], [make_row(0, [5], [0])])

    assert [failed.row for failed in (*done.failed, *then.failed)] == [0, 0]
    assert "not given the logits processor 'shout'" in done.failed[0].error
    assert done.failed[0].error == then.failed[0].error
    assert then.token_ids[0] == -1
    assert then.token_ids[1] >= 0
    assert last.failed == ()


def test_closing_twice_is_closing_once_and_no_thread_is_left(folder: Path) -> None:
    before = threading.active_count()
    device = open_paged(folder)
    Driver(device).run([(0, 0, 2, True)], [make_row(0, [1, 2], [0])])

    device.close()
    device.close()

    assert threading.active_count() == before


def test_closing_lets_go_of_weights_and_memory_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only when something is collected: on a GPU others may wait for the memory."""
    kept: list[weakref.ref[object]] = []
    make = StepRunner.__init__

    def note(self: StepRunner, decoder: PagedDecoder, *args: Any, **kwargs: Any) -> None:
        make(self, decoder, *args, **kwargs)
        layer = decoder.weights.layers[0]
        kept.extend(map(weakref.ref, (self.kv.keys[0], layer.down, decoder.weights.embedding)))

    monkeypatch.setattr(StepRunner, "__init__", note)
    gc.collect()
    gc.disable()
    try:
        device = open_paged(folder)
        generate(device, PROMPTS, 3)
        device.close()
    finally:
        gc.enable()

    assert [reference() for reference in kept] == [None, None, None]


def test_a_step_launched_on_a_closed_device_fails(folder: Path) -> None:
    device = open_paged(folder)
    device.close()
    results: list[StepDone | StepFailed] = []

    device.launch(make_plan(1, []), results.append)

    assert isinstance(results[0], StepFailed)


def test_two_devices_live_side_by_side(folder: Path, device: CudaDevice) -> None:
    other = open_paged(folder)

    first, second = generate(device, PROMPTS, 5), generate(other, PROMPTS, 5)
    other.close()

    assert first == second
