"""Builders for tests of the whole engine in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from stepahead import Engine, EngineConfig
from stepahead.actors.backend import Backend
from stepahead.actors.batching import Drafter
from stepahead.actors.grammars import GrammarService
from stepahead.actors.offload import Offload
from stepahead.actors.text.toy import ToyTokenizer
from stepahead.actors.virtual_time import run_virtual
from stepahead.gpu.device import Device, DeviceFacts
from stepahead.gpu.host import HostMemory
from stepahead.gpu.oracle import Oracle
from stepahead.gpu.simulated import SimulatedDevice, StepTime
from stepahead.messages import SamplingParams

T = TypeVar("T")
Scenario: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
STEP = StepTime(overhead_s=0.010, weight_bytes=0, kv_bytes_per_token=0, flops_per_token=0)
"""Every step takes 10 ms of virtual time."""


def virtual(scenario: Scenario) -> Callable[[], None]:
    """Run a test in virtual time."""

    def test() -> None:
        run_virtual(scenario())

    test.__name__ = scenario.__name__
    test.__doc__ = scenario.__doc__
    return test


async def inline(function: Callable[[], T]) -> T:
    """An offload for simulations: it runs where it is called."""
    return function()


def virtual_clock() -> Callable[[], int]:
    """The running loop's time, in nanoseconds."""
    loop = asyncio.get_running_loop()
    return lambda: int(loop.time() * 1e9)


def make_config(**options: object) -> EngineConfig:
    defaults: dict[str, object] = {
        "device": "simulated",
        "block_size": 4,
        "num_blocks": 256,
        "max_model_len": 256,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
    }
    pool = options.get("num_blocks", 256)
    assert isinstance(pool, int)
    defaults["max_model_len"] = min(256, 4 * pool)  # as a model's context is fitted to the pool
    return EngineConfig(**{**defaults, **options})  # type: ignore[arg-type]  # passed on


def make_facts(config: EngineConfig) -> DeviceFacts:
    assert config.num_blocks is not None
    assert config.max_model_len is not None
    tokenizer = ToyTokenizer()
    return DeviceFacts(
        model="oracle",
        device="simulated",
        dtype="none",
        vocab_size=tokenizer.vocab_size,
        max_model_len=min(config.max_model_len, config.num_blocks * config.block_size),
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        eos_token_ids=tokenizer.eos_token_ids,
        host=HostMemory(num_blocks=config.num_host_blocks or 0, block_copy_s=1e-3, token_s=1e-3),
    )


def make_device(
    config: EngineConfig,
    *,
    oracle: Oracle | None = None,
    draws: bool = False,
    processors: Any = None,
) -> SimulatedDevice:
    return SimulatedDevice(
        replace(make_facts(config), logits_processors=frozenset(processors or ())),
        2 * config.max_num_seqs,
        asyncio.get_running_loop().call_later,
        oracle=oracle,
        step_time=STEP,
        draws=draws,
        processors=processors,
    )


def make_engine(
    *,
    oracle: Oracle | None = None,
    device: Device | None = None,
    offload: Offload = inline,
    drafter: Drafter | None = None,
    grammars: GrammarService | None = None,
    **options: object,
) -> Engine:
    """An engine on the simulated device; call it inside a running loop."""
    config = make_config(**options)
    device = device or make_device(config, oracle=oracle)
    backend = Backend(device, ToyTokenizer(), SamplingParams(), drafter, grammars)
    return Engine(config, backend=backend, offload=offload, clock=virtual_clock())


async def settle(engine: Engine, steps: int = 1) -> None:
    """Let virtual time pass for some steps."""
    await asyncio.sleep(0.0101 * steps)


def is_empty(engine: Engine) -> bool:
    """Whether nothing is live and every block is free."""
    stats = engine.stats()
    is_idle = stats.running == stats.waiting == stats.host_blocks_held == 0
    return is_idle and stats.blocks_free == stats.blocks_total


def is_said_by(oracles: list[Oracle], prompt: list[int], said: Sequence[int]) -> bool:
    """Whether each token follows by one of these oracles, none of them after a later one."""
    place = 0
    for index in range(len(said)):
        before = [*prompt, *said[:index]]
        while oracles[place].answer(before, 1) != [said[index]]:
            place += 1
            if place == len(oracles):
                return False
    return True
