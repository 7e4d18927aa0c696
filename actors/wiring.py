"""Wiring: the actors of one engine, their mailboxes and who posts to whom.

callers ─► Intake ──Generate──► Scheduler ──StepPlan──► Executor ─► device
              │                 ▲  │  ▲  ◄── StepDone ──────────────┘
           Generate    StopMatched │  └─ReserveBlocks…─► KVPool (answers in the same turn)
              ▼                 │  ▼
callers ◄─ Detokenizer ◄── TokensReady
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..gpu.device import HoldsSampling
from ..kvpool import BlockPool
from ..messages import ConfigError, Finished
from .actor import Actor, Mailbox
from .backend import Backend
from .batching import Batcher, BatchLimits
from .config import EngineConfig, step_tokens
from .control import Control
from .cores import Cores, CoreSetup, build_cores
from .detokenizer import Detokenizer, DetokenizerMessage
from .executor import Executor, ExecutorMessage
from .grammars import BACKENDS, GrammarService, StructuredGrammars
from .intake import Intake
from .journal import Journal
from .offload import Offload
from .scheduler import CallAt
from .stats import EngineStats
from .streams import OutputStreams


def batch_limits(config: EngineConfig, backend: Backend) -> BatchLimits:
    """The Batcher's limits: the options, within what the device found out."""
    facts, threshold = backend.device.facts, config.long_prefill_token_threshold
    return BatchLimits(
        block_size=facts.block_size,
        num_blocks=facts.num_blocks,
        max_model_len=facts.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=step_tokens(config, facts.step_tokens),
        long_prefill_token_threshold=threshold or facts.fair_chunk,
        steps_in_flight=config.steps_in_flight,
        prefix_caching=config.prefix_caching,
        holds_sampling=isinstance(backend.device, HoldsSampling),
        ageing_ns=None if config.ageing is None else int(config.ageing * 1e9),
        prefix_ttl_ns=None if config.prefix_ttl is None else int(config.prefix_ttl * 1e9),
        num_host_blocks=facts.host.num_blocks,
        block_copy_s=facts.host.block_copy_s,
        token_s=facts.host.token_s,
        doubling_context=None if threshold else facts.doubling_context,
    )


def core_setup(config: EngineConfig, backend: Backend) -> CoreSetup:
    """What the cores are built from."""
    return CoreSetup(
        limits=batch_limits(config, backend),
        watermark=int(config.watermark * backend.device.facts.num_blocks),
        is_checked=config.check_invariants,
    )


@dataclass(frozen=True, slots=True)
class Wiring:
    """Everything that lives and dies with one engine."""

    journal: Journal
    cores: Cores
    streams: OutputStreams
    intake: Intake
    control: Control
    grammars: GrammarService
    actors: tuple[Actor[Any], ...]

    @property
    def pool(self) -> BlockPool:
        return self.cores.pool

    @property
    def batcher(self) -> Batcher:
        return self.cores.batcher

    def stats(self) -> EngineStats:
        """Counts at this moment."""
        return EngineStats.count(self.cores.pool, self.cores.batcher, self.streams)

    @property
    def seconds_since_progress(self) -> float:
        """Since a step was posted or done; 0 while nobody waits for one."""
        if not len(self.streams):
            return 0.0
        return (self.journal.clock() - self.cores.scheduler.progressed_ns) / 1e9


def wire(
    config: EngineConfig,
    backend: Backend,
    loop: asyncio.AbstractEventLoop,
    journal: Journal,
    setup: CoreSetup,
    *,
    offload: Offload,
    on_finished: Callable[[Finished], None],
) -> Wiring:
    """Make the mailboxes first, then the actors between them."""
    facts, streams = backend.device.facts, OutputStreams()
    grammars = backend.grammars or _structured_grammars(config, backend, offload)

    to_executor: Mailbox[ExecutorMessage] = Mailbox("executor", journal)
    to_detokenizer: Mailbox[DetokenizerMessage] = Mailbox("detokenizer", journal)

    with _room_for_slots(setup):
        cores = build_cores(
            setup,
            journal,
            drafter=backend.drafter,
            grammars=grammars,
            masks=lambda masks: executor.take(masks),
            executor=lambda message: executor.take(message),  # which needs the Scheduler's address
            detokenizer=to_detokenizer.post,
            call_at=_call_at(loop, journal.clock),
        )
    to_scheduler = cores.to_scheduler
    detokenizer = Detokenizer(
        to_detokenizer,
        backend.tokenizer,
        streams,
        scheduler=to_scheduler.post,
        finished=lambda done: _tell(journal, done, on_finished),
        is_scheduler_due=lambda: not to_scheduler.is_empty,
    )
    intake = Intake(
        facts,
        backend.tokenizer,
        streams,
        max_live=config.max_num_seqs + config.max_waiting,
        max_logprobs=config.max_logprobs,
        offload=offload,
        clock=journal.clock,
        grammars=grammars,
        scheduler=to_scheduler.post,
        detokenizer=to_detokenizer.post,
    )
    control = Control(
        facts,
        intake,
        streams,
        prefix_caching=config.prefix_caching,
        scheduler=to_scheduler.post,
        pool=cores.to_pool.post,
    )
    executor = Executor(
        to_executor,
        journal,
        backend.device,
        scheduler=to_scheduler.post,
        control=control.weights_loaded,
    )
    actors = (cores.kvpool, cores.scheduler, executor, detokenizer)
    return Wiring(journal, cores, streams, intake, control, grammars, actors)


def _structured_grammars(
    config: EngineConfig, backend: Backend, offload: Offload
) -> StructuredGrammars:
    facts, tokenizer = backend.device.facts, backend.tokenizer
    return StructuredGrammars(
        tokenizer,
        vocab_size=facts.vocab_size,
        eos_token_ids=facts.eos_token_ids | tokenizer.eos_token_ids,
        offload=offload,
        make_backend=BACKENDS[config.grammar_backend],
    )


def _call_at(loop: asyncio.AbstractEventLoop, clock: Callable[[], int]) -> CallAt:
    """Timers of the event loop by the engine's clock. One in floating point may fire a moment
    early, and would be set again for ever: hence the microsecond."""
    return lambda t_ns, call: loop.call_later(max(t_ns - clock(), 0) / 1e9 + 1e-6, call)


@contextmanager
def _room_for_slots(setup: CoreSetup) -> Iterator[None]:
    """Raise ConfigError where the cores' tables do not fit into memory."""
    try:
        yield
    except MemoryError as error:
        raise ConfigError(
            f"{setup.limits.num_slots:,} slots of {setup.limits.max_model_len:,} positions do not "
            "fit into memory; use fewer"
        ) from error


def _tell(journal: Journal, done: Finished, listener: Callable[[Finished], None]) -> None:
    journal.begin_turn("log", [journal.stamp(done)])
    listener(done)
