"""Configurations that make no sense: one clear error each, and nothing half-started."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stepahead import ConfigError, EngineConfig
from stepahead.actors import wiring
from stepahead.actors.virtual_time import run_virtual
from stepahead.cli.main import main
from stepahead.gpu import memory
from stepahead.gpu.memory import size_pool
from stepahead.gpu.options import DeviceOptions
from stepahead.gpu.simulated import SimulatedDevice

from .engines import make_engine
from .mistakes import the_mistake


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("device", "abacus"),
        ("dtype", "float8"),
        ("block_size", 0),
        ("num_blocks", -1),
        ("num_blocks", 2**24 + 1),
        ("num_blocks", 2.0),
        ("kv_memory", 0),
        ("num_host_blocks", -1),
        ("num_host_blocks", 2**24 + 1),
        ("swap_memory", 1.5),
        ("max_model_len", "long"),
        ("max_num_seqs", True),
        ("max_num_seqs", 2**16 + 1),
        ("max_num_batched_tokens", -5),
        ("max_waiting", 0),
        ("steps_in_flight", 5),
        ("steps_in_flight", True),
        ("steps_in_flight", "2"),
        ("prefix_caching", "no"),
        ("gpu_memory_fraction", 0),
        ("gpu_memory_fraction", 1.01),
        ("gpu_memory_fraction", True),
        ("gpu_memory_fraction", float("nan")),
        ("graph_capture_s", -1),
        ("graph_capture_s", float("inf")),
        ("watermark", 1.5),
        ("watermark", "a lot"),
        ("watermark", float("nan")),
        ("ageing", -1.0),
        ("ageing", float("inf")),
        ("prefix_ttl", 0),
        ("long_prefill_token_threshold", 2**31),
    ],
)
def test_a_value_without_meaning_is_refused_by_name(option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{option} is "):
        EngineConfig(**{option: value})  # type: ignore[arg-type]  # on purpose


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    (
        {"max_model_len": 200, "num_blocks": 12, "block_size": 16},
        r"max_model_len is 200, but the pool has 192 positions \(12 blocks of 16\)",
    ),
    ({"max_model_len": 1}, "max_model_len is 1; it must be at least 2"),
    ({"num_blocks": 1, "block_size": 1}, "the pool has a single position"),
    ({"num_blocks": 9, "kv_memory": 9}, "num_blocks and kv_memory both"),
    ({"num_host_blocks": 0, "swap_memory": 9}, "num_host_blocks and swap_memory both"),
    (
        {"max_num_batched_tokens": 63, "max_num_seqs": 64},
        "max_num_batched_tokens is 63, less than max_num_seqs, which is 64",
    ),
    (
        {"long_prefill_token_threshold": 513, "max_num_batched_tokens": 512},
        "long_prefill_token_threshold is 513, more than max_num_batched_tokens, which is 512",
    ),
]


@pytest.mark.parametrize(("options", "complaint"), CONTRADICTIONS)
def test_limits_that_contradict_each_other_are_refused(
    options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        EngineConfig(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"max_model_len": 192, "num_blocks": 12, "block_size": 16},
        {"max_model_len": 2, "num_blocks": 2, "block_size": 1},
        {"max_num_batched_tokens": 64, "max_num_seqs": 64},
        {"long_prefill_token_threshold": 512, "max_num_batched_tokens": 512},
        {"watermark": 0, "steps_in_flight": 4, "ageing": 1},
    ],
)
def test_limits_that_just_agree_are_taken(options: dict[str, Any]) -> None:
    EngineConfig(**options)


def options(**given: Any) -> DeviceOptions:
    defaults: dict[str, Any] = {
        "model": "m",
        "dtype": "float32",
        "block_size": 16,
        "num_blocks": None,
        "kv_memory": None,
        "max_model_len": None,
        "num_slots": 4,
        "max_num_batched_tokens": 64,
    }
    return DeviceOptions(**{**defaults, **given})


def test_more_positions_than_the_model_has_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_model_len is 65, but the model's context is 64"):
        size_pool(options(max_model_len=65), context_length=64, position_bytes=10)


def test_more_positions_than_the_memory_holds_are_refused() -> None:
    given = options(max_model_len=64, kv_memory=48 * 10)

    with pytest.raises(ConfigError, match="max_model_len is 64, but the KV memory holds 48"):
        size_pool(given, context_length=64, position_bytes=10)
    fitted = size_pool(options(kv_memory=48 * 10), context_length=64, position_bytes=10)
    assert fitted.max_model_len == 48


@pytest.mark.parametrize(
    ("context", "slots", "bytes_free", "positions"),
    [
        (8_192, 64, 2**40, 3 * 8_192),
        (65_536, 64, 2**40, 3 * 65_536),
        (512, 256, 2**40, 24_576),
        (8_192, 2, 2**40, 2 * 8_192),
        (8_192, 64, 800_000, 20_000 // 16 * 16),
    ],
    ids=["contexts", "long contexts", "short contexts", "few sequences", "little memory"],
)
def test_a_pool_of_no_given_size_takes_no_more_memory_than_its_sequences_need(
    context: int, slots: int, bytes_free: int, positions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: bytes_free)

    pool = size_pool(options(num_slots=slots), context_length=context, position_bytes=10)

    assert pool.num_blocks * 16 == positions


def test_an_engine_that_cannot_start_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closed: list[SimulatedDevice] = []
    close = SimulatedDevice.close

    def noted(device: SimulatedDevice) -> None:
        closed.append(device)
        close(device)

    def too_large(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(SimulatedDevice, "close", noted)
    monkeypatch.setattr(wiring, "build_cores", too_large)
    kept = tmp_path / "recording"
    kept.write_text("an older one")

    async def scenario() -> None:
        engine = make_engine(record=kept)
        with pytest.raises(ConfigError, match="16 slots of 256 positions do not fit into memory"):
            await engine.start()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(scenario())
    assert len(closed) == 1
    assert kept.read_text() == "an older one"


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "x", "--device", "simulated", "--max-model-len", "99", "--num-blocks", "2"],
        ["chat", "x", "--max-num-batched-tokens", "8"],
        ["generate", "x", "--max-model-len", "1"],
        ["bench", "control-plane", "--num-blocks", "-1"],
        ["simulate", "--rate", "1", "--max-num-batched-tokens", "8"],
        ["simulate", "--rate", "1", "--max-model-len", "99", "--num-blocks", "2"],
        ["simulate", "--rate", "1", "--num-blocks", "2000000000"],
        ["simulate", "--rate", "1", "--burst", "1000000000"],
    ],
)
def test_the_command_tells_a_contradiction_in_a_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2

    the_mistake(capsys)
