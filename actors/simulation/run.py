"""The run: the real Scheduler, Batcher and BlockPool against a trace, in virtual time.

Arrivals and finished steps are events of an `EventClock`, and a turn is a plain call: nothing here
waits for anything but time, so an event loop and its tasks would only cost. For the same reason
the Batcher asks the BlockPool itself, without the KVPool actor that numbers their messages, unless
the run is recorded. Text is left out, and so is the bound on waiting requests: who comes, waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...gpu.device import DeviceFacts
from ...gpu.host import NO_HOST_MEMORY, HostMemory
from ...gpu.timed import StepSeconds, TimedDevice
from ...messages import ConfigError, SamplingParams, StepDone, StepFailed, StepPlan, TokensReady
from ..actor import Mailbox
from ..backend import Backend
from ..batching import Batcher
from ..config import EngineConfig
from ..cores import CoreSetup, build_pool
from ..journal import Journal
from ..scheduler import Scheduler, SchedulerMessage
from ..text.toy import ToyTokenizer
from ..wiring import batch_limits
from .clock import EventClock
from .measures import OccupancyMeter, RequestTimes, Spread
from .requests import RequestWriter
from .result import SimulationResult
from .tape import Tape
from .trace import TraceRequest

MAX_HOST_S = 10.0  # seconds of planning per step


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What the engine is imagined to run on."""

    name: str
    step_seconds: StepSeconds
    num_blocks: int  # KV blocks, unless the configuration says how many
    host_s: float = 0.0  # planning and handing over a step
    memory: HostMemory = NO_HOST_MEMORY  # that blocks can be moved to

    def __post_init__(self) -> None:
        if not 0 <= self.host_s <= MAX_HOST_S:
            raise ConfigError(
                f"the host overhead is {self.host_s * 1e3:g} ms; "
                f"it must be from 0 to {MAX_HOST_S * 1e3:,.0f}"
            )


def simulate(
    trace: Sequence[TraceRequest], config: EngineConfig, hardware: Hardware
) -> SimulationResult:
    """Run a trace, in the order of arrival, to its end."""
    if not trace:
        raise ConfigError("the trace is empty; it must hold at least one request")
    num_blocks = config.num_blocks or hardware.num_blocks
    longest = max(request.prompt_tokens + request.output_tokens for request in trace)
    memory = hardware.memory
    if config.num_host_blocks is not None:
        memory = replace(memory, num_blocks=config.num_host_blocks)
    facts = DeviceFacts(
        model="simulated",
        device="simulated",
        dtype="none",
        vocab_size=2**31,
        max_model_len=min(config.max_model_len or longest, num_blocks * config.block_size),
        block_size=config.block_size,
        num_blocks=num_blocks,
        eos_token_ids=frozenset(),
        host=memory,
    )
    config = replace(config, num_blocks=num_blocks)
    try:
        run = _Run(trace, config, hardware, facts)
    except MemoryError as error:
        raise ConfigError(
            f"{2 * config.max_num_seqs:,} slots of {facts.max_model_len:,} positions and "
            f"{num_blocks:,} blocks do not fit into memory; use fewer"
        ) from error
    return run.run()


class _Run:
    """Everything that lives as long as one trace."""

    def __init__(
        self,
        trace: Sequence[TraceRequest],
        config: EngineConfig,
        hardware: Hardware,
        facts: DeviceFacts,
    ) -> None:
        self._trace = trace
        self._facts = facts
        self._name = hardware.name
        self._clock = clock = EventClock()
        self._device = TimedDevice(
            facts,
            lambda: clock.now,
            clock.call_at,
            hardware.step_seconds,
            host_s=hardware.host_s,
        )
        self._wire(config)
        self._times = RequestTimes(len(trace))
        self._occupancy = OccupancyMeter()
        self._next = 0  # place in the trace; also the serial
        self._live = 0
        self._refused = 0
        self._shortened = 0

    def _wire(self, config: EngineConfig) -> None:
        facts, clock = self._facts, self._clock
        backend = Backend(self._device, ToyTokenizer(), SamplingParams())
        is_recorded = config.record is not None  # else nobody asks why a prefix was not found
        limits = replace(batch_limits(config, backend), explains_prefixes=is_recorded)
        setup = CoreSetup(limits=limits, watermark=int(config.watermark * facts.num_blocks))
        journal = Journal(lambda: int(clock.now * 1e9))
        self._pool = build_pool(limits, setup.watermark)
        path = config.record
        self._tape = None if path is None else Tape(Path(path), setup, facts, journal)
        self._batcher = Batcher(limits, self._tape.pool(self._pool) if self._tape else self._pool)
        self._mailbox: Mailbox[SchedulerMessage] = Mailbox("scheduler", journal)
        self._scheduler = Scheduler(
            self._mailbox,
            self._batcher,
            executor=self._launch,
            detokenizer=self._hear,
            call_at=lambda t_ns, call: clock.call_at(t_ns / 1e9, call),
        )
        self._writer = RequestWriter(facts.max_model_len)

    def run(self) -> SimulationResult:
        self._await_arrival()
        self._clock.run()
        if self._tape is not None:
            self._tape.save()
        if self._live:
            raise RuntimeError(f"{self._live} requests wait and nothing will ever happen again")
        return self._result()

    # Events

    def _await_arrival(self) -> None:
        if self._next < len(self._trace):
            self._clock.call_at(self._trace[self._next].arrival, self._arrive)

    def _arrive(self) -> None:
        """All that arrive at this moment, in one turn."""
        self._occupancy.advance(self._clock.now)
        while self._next < len(self._trace) and self._is_due(self._trace[self._next]):
            self._post(self._next, self._trace[self._next])
            self._next += 1
        self._await_arrival()
        if self._batcher.steps.is_full:
            self._note_occupancy()  # a turn could do nothing; the mailbox keeps them until it can
        else:
            self._turn()

    def _is_due(self, request: TraceRequest) -> bool:
        return request.arrival <= self._clock.now

    def _post(self, serial: int, request: TraceRequest) -> None:
        if not self._writer.fits(request):
            self._refused += 1
            return
        posted = self._writer.write(serial, request)
        self._shortened += posted.max_tokens < request.output_tokens
        self._times.arrived[serial] = request.arrival
        self._live += 1
        if self._tape is not None:
            self._tape.hear(posted)
        self._mailbox.post(posted)

    def _launch(self, plan: StepPlan) -> None:
        if self._tape is not None:
            self._tape.plan(plan)
        self._device.launch(plan, self._finish)

    def _finish(self, result: StepDone | StepFailed) -> None:
        self._occupancy.advance(self._clock.now)
        self._mailbox.post(result)
        self._turn()

    def _turn(self) -> None:
        turn = self._mailbox.drain()
        if turn is not None:
            self._scheduler.react(turn)
        self._note_occupancy()

    def _hear(self, report: TokensReady) -> None:
        if self._tape is not None:
            self._tape.hear(report)
        self._live -= len(report.ended)
        self._times.add(report, self._clock.now)

    def _note_occupancy(self) -> None:
        running = self._batcher.num_running
        self._occupancy.set(running, self._live - running, self._pool.num_held)

    # The end

    def _result(self) -> SimulationResult:
        times, occupancy, seconds = self._times, self._occupancy, self._clock.now
        times.settle()
        ended = times.tokens > 0
        output_tokens = int(times.tokens.sum())
        prompts = zip(self._trace, ended.tolist(), strict=True)
        return SimulationResult(
            device=self._name,
            requests=len(self._trace),
            finished=times.ended,
            refused=self._refused,
            shortened=self._shortened,
            prompt_tokens=sum(request.prompt_tokens for request, is_over in prompts if is_over),
            output_tokens=output_tokens,
            seconds=seconds,
            steps=self._device.steps,
            device_busy=self._device.busy_s / seconds if seconds else 0.0,
            requests_per_s=times.ended / seconds if seconds else 0.0,
            tokens_per_s=output_tokens / seconds if seconds else 0.0,
            ttft_s=Spread.of((times.first - times.arrived)[ended]),
            inter_token_s=times.gaps.spread(),
            latency_s=Spread.of((times.last - times.arrived)[ended]),
            preemptions=times.preemptions,
            swaps=self._batcher.swaps,
            moved_blocks=self._device.moved_blocks,
            computed_tokens=self._device.computed_tokens,
            cache_hit_tokens=times.cached_tokens,
            num_blocks=self._facts.num_blocks,
            max_model_len=self._facts.max_model_len,
            peak_running=occupancy.peak_running,
            peak_waiting=occupancy.peak_waiting,
            peak_blocks_held=occupancy.peak_held,
            occupancy=occupancy.spans(),
        )
