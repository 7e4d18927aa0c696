"""Rows that share leading blocks attend together on the CUDA device, here on the CPU."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stepahead.gpu.cuda.shared_prefix import Savings

from .device_driver import Driver, make_row
from .paged_devices import CudaDevice, OpaqueOps, open_paged
from .run_again import RunAgain
from .tiny_models import make_folder

PREFIX = list(range(20, 28))  # two blocks
PROMPTS = [[*PREFIX, *rest] for rest in ([5], [9, 8, 7], [11, 30], [3, 1, 4, 1], [2, 7])]
BLOCKS = 6  # of a row


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model"), "llama", initializer_range=0.5)


@pytest.fixture
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any block that one row need not read is worth it: tiny models save too little."""
    free = Savings(block_bytes=2, row_bytes=0, launch_bytes=0)
    monkeypatch.setattr(Savings, "of", lambda **_: free)


class NotingOps(OpaqueOps):
    """Notes of every layer's attention how many rows it has, and whether some go together."""

    def __init__(self) -> None:
        super().__init__()
        self.attended: list[tuple[int, bool]] = []

    def attend(self, *given: Any) -> Any:
        rows = given[3]
        self.attended.append((len(rows.slots), rows.shared is not None))
        return super().__getattr__("attend")(*given)

    def together(self) -> set[int]:
        """Rows of the steps in which some went together."""
        return {rows for rows, is_shared in self.attended if is_shared}


def say(device: CudaDevice, num_tokens: int = 6, *, is_shared: bool, **sampling: Any) -> list[int]:
    """Every prompt joins while those before it run on; what the last of each step said, in order.
    Shared or not, a row reads the same numbers."""
    driver = Driver(device)
    said: list[int] = []
    positions: list[int] = []
    for slot, prompt in enumerate(PROMPTS):
        blocks = list(range(slot * BLOCKS, (slot + 1) * BLOCKS))
        start = len(PREFIX) if slot and is_shared else 0
        if start:
            blocks[:2] = [0, 1]
        rows = [(other, position, 1, True) for other, position in enumerate(positions)]
        rows.append((slot, start, len(prompt) - start, True))
        done = driver.run(rows, [make_row(slot, prompt, blocks, **sampling)])
        said += done.token_ids.tolist()
        positions = [position + 1 for position in positions] + [len(prompt)]
    for _ in range(num_tokens):
        done = driver.run([(slot, position, 1, True) for slot, position in enumerate(positions)])
        said += done.token_ids.tolist()
        positions = [position + 1 for position in positions]
    device.close()
    return said


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("capture", [None, RunAgain])
def test_rows_that_share_blocks_say_what_each_says_alone(
    folder: Path, temperature: float, capture: Callable[[], RunAgain] | None
) -> None:
    ops = NotingOps()
    wishes: dict[str, Any] = {"temperature": temperature, "seed": 3}

    together = say(open_paged(folder, ops=ops, capture=capture), is_shared=True, **wishes)

    assert together == say(open_paged(folder), is_shared=False, **wishes)
    assert 4 in ops.together()  # beside a prompt that joins
    assert (5 if capture is None else 8) in ops.together()  # all by themselves


@pytest.mark.usefixtures("_always")
def test_rows_that_share_nothing_never_go_together(folder: Path) -> None:
    ops = NotingOps()

    say(open_paged(folder, ops=ops), is_shared=False)

    assert ops.together() == set()


def test_rows_whose_sharing_saves_too_little_do_not_go_together(folder: Path) -> None:
    ops = NotingOps()

    say(open_paged(folder, ops=ops), is_shared=True)

    assert ops.together() == set()


@pytest.mark.usefixtures("_always")
def test_graphs_of_rows_that_share_are_replayed_for_them_alone(folder: Path) -> None:
    for is_shared in (True, False):
        ops, capture = NotingOps(), RunAgain()
        device = open_paged(folder, ops=ops, capture=partial(_same, capture), num_slots=16)
        ops.attended.clear()

        say(device, is_shared=is_shared)

        assert capture.replayed == 2 * 6
        assert (8 in ops.together()) == is_shared  # the least that is captured and holds all rows


def _same(capture: RunAgain) -> RunAgain:
    return capture
