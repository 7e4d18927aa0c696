"""The processor device loads other weights of the same shape, and refuses all others whole."""

from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from stepahead.gpu.cpu import CpuDevice, open_cpu_device
from stepahead.gpu.options import DeviceOptions
from stepahead.messages import WeightsLoaded

from .device_driver import call_at_once, generate
from .tiny_models import make_folder

LOAD_S = 60  # longest wait for weights
PROMPTS = [[3, 14, 15, 92, 65, 35], [27, 18, 28]]


def folder(parent: Path, name: str, **changes: object) -> Path:
    """A model of its own; `initializer_range` alone makes other weights."""
    return make_folder(parent / name, "llama", **{"initializer_range": 0.5, **changes})


def open_device(model: Path, **options: object) -> CpuDevice:
    fields: dict[str, object] = {"dtype": "float32", "num_blocks": 64, "block_size": 4}
    return open_cpu_device(
        DeviceOptions(model=str(model), **(fields | options)),  # type: ignore[arg-type]
        call_at_once,
    )


def reload(device: CpuDevice, source: Path) -> str | None:
    """The error, if there is one."""
    told: SimpleQueue[WeightsLoaded] = SimpleQueue()
    device.load_weights(str(source), told.put)
    loaded = told.get(timeout=LOAD_S)
    assert loaded.source == str(source)
    return loaded.error


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def old(parent: Path) -> Path:
    return folder(parent, "old")


@pytest.fixture(scope="module")
def new(parent: Path) -> Path:
    return folder(parent, "new", initializer_range=0.7)


@pytest.fixture
def device(old: Path) -> Iterator[CpuDevice]:
    device = open_device(old)
    yield device
    device.close()


@pytest.mark.parametrize("generic", [False, True])
def test_after_a_reload_a_device_says_what_a_new_one_would(
    old: Path, new: Path, generic: bool
) -> None:
    fresh = open_device(new, generic=generic)
    expected = generate(fresh, PROMPTS, 8)
    fresh.close()
    device = open_device(old, generic=generic)
    before = generate(device, PROMPTS, 8)

    error = reload(device, new)
    after = generate(device, PROMPTS, 8)
    name = device.facts.model
    device.close()

    assert error is None
    assert after == expected != before
    assert name == "new"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 3}, "has 3 layers, and the model that runs has"),
        ({"vocab_size": 100}, "has 100 ids in its vocabulary"),
        ({"num_key_value_heads": 1}, "KV numbers per position"),
        ({"eos_token_id": 5}, "end-of-sequence ids"),
        ({"max_position_embeddings": 32}, "a context of 32 tokens, and requests may have 64"),
    ],
)
def test_weights_of_another_shape_are_refused_and_the_old_ones_stay(
    changes: dict[str, object], words: str, device: CpuDevice, tmp_path: Path
) -> None:
    before = generate(device, PROMPTS, 4)

    error = reload(device, folder(tmp_path, "other", **changes))

    assert error is not None
    assert words in error
    assert generate(device, PROMPTS, 4) == before
    assert device.facts.model == "old"


def test_weights_that_are_missing_or_damaged_are_refused(
    device: CpuDevice, new: Path, tmp_path: Path
) -> None:
    before = generate(device, PROMPTS, 4)
    damaged = folder(tmp_path, "damaged")
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])

    assert reload(device, tmp_path / "missing") is not None
    assert reload(device, damaged) is not None
    assert generate(device, PROMPTS, 4) == before
    assert reload(device, new) is None


def test_a_closing_device_loads_nothing(old: Path, new: Path) -> None:
    device = open_device(old)
    told: list[WeightsLoaded] = []
    device.close()
    device.load_weights(str(new), told.append)

    assert [loaded.error for loaded in told] == ["the device is closed"]
