"""Engine: starts and closes the actors, and is what callers talk to."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

import anyio

from ..gpu.device import DeviceFacts
from ..messages import (
    ConfigError,
    EngineDead,
    Result,
    SamplingParams,
)
from .backend import Backend, open_backend
from .chat_options import ChatRequestOptions, without_chat_words
from .config import EngineConfig
from .engine_control import EngineControl
from .engine_history import EngineHistory
from .engine_scoring import EngineScoring
from .engine_texts import EngineTexts
from .intake import Intake
from .journal import Journal
from .offload import Offload, offload_to_thread
from .prompt_texts import Conversation, Prompt
from .recording.recorder import Recorder, check_writable, open_recorder
from .request_log import RequestLog
from .request_options import Options, RequestOptions
from .stats import EngineHealth, EngineState, EngineStats
from .stats_socket import StatsSocket, check_free
from .stream import DeltaStream
from .streams import OutputStream
from .wiring import Wiring, core_setup, wire

if TYPE_CHECKING:
    from ..gpu.logits_processors import LogitsProcessors
    from .telemetry.spans import Spans


class Engine(EngineTexts, EngineScoring, EngineHistory, EngineControl):
    """An LLM inference engine that lives in the event loop it was started in.

        async with Engine(EngineConfig(model="smollm2-135m")) as engine:
            result = await engine.generate("The capital of France is")

    `logits_processors` are functions that requests may call by name (SamplingParams).

    `backend`, `offload` and `clock` are for tests and simulations; otherwise the model is loaded
    as the configuration says, long texts are tokenised on threads, and time is the system's
    (an event loop's own time may be as coarse as a millisecond).
    """

    def __init__(
        self,
        config: EngineConfig | None = None,
        *,
        logits_processors: "LogitsProcessors | None" = None,
        backend: Backend | None = None,
        offload: Offload = offload_to_thread,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.config = config or EngineConfig()
        self._logits_processors = logits_processors
        self._given_backend = backend
        self._offload = offload
        self._clock = clock
        self._recorder: Recorder | None = None
        self._spans: list[Spans] = []
        self._saving: asyncio.Future[None] | None = None  # what was recorded
        self._loop: asyncio.AbstractEventLoop | None = None
        self._backend: Backend | None = None
        self._wiring: Wiring | None = None
        self._task: asyncio.Task[None] | None = None
        self._socket: StatsSocket | None = None
        self._dead: EngineDead | None = None
        self._is_unwanted = False  # closed before the model was there
        self._closing: asyncio.Task[None] | None = None

    # Life

    async def start(self) -> None:
        """Load the model and start the actors. Raises ModelError or ConfigError."""
        if self._loop is not None:
            raise ConfigError("the engine was started before; make a new Engine to start again")
        check_writable(self.config.record)
        check_writable(self.config.record_failure)
        check_free(self.config.stats_socket)
        self._loop = asyncio.get_running_loop()
        backend = self._given_backend or await open_backend(
            self.config, 2 * self.config.max_num_seqs, self._logits_processors
        )
        self._backend = backend
        try:
            await self._start_actors(backend, self._loop)
        except BaseException:
            await self.close()  # nothing stays half-started
            raise

    async def _start_actors(self, backend: Backend, loop: asyncio.AbstractEventLoop) -> None:
        if self._is_unwanted:
            raise EngineDead("the engine was closed while it started")
        log = RequestLog(backend.device)
        journal = Journal(self._clock)
        setup = core_setup(self.config, backend)
        self._wiring = wire(
            self.config,
            backend,
            loop,
            journal,
            setup,
            offload=self._offload,
            on_finished=log.finished,
        )
        # Not before: an older recording stays where the engine cannot be built.
        self._recorder = open_recorder(self.config, setup, backend.device.facts, journal)
        self._recorder.watch(self._wiring.cores)
        log.attach(journal, self._wiring.stats)
        ready = asyncio.Event()
        self._task = loop.create_task(self._run(self._wiring, ready), name="stepahead-engine")
        await ready.wait()
        if self.config.stats_socket is not None:
            self._socket = await StatsSocket.open(self.config.stats_socket, self._counts)

    async def close(self) -> None:
        """Stop the actors and give the memory back; requests still live raise EngineDead.

        Idempotent, also while another task closes; it ends even if its caller is cancelled.
        """
        if self._loop is None:
            return
        self._require_own_loop()
        if self._backend is None:
            self._is_unwanted = True  # `start` sees it when the model is loaded
            return
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(self._backend))
        await asyncio.shield(self._closing)

    async def _close(self, backend: Backend) -> None:
        if self._socket is not None:
            await self._socket.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._saving is not None:
            await self._saving
        elif self._recorder is not None:  # no actor ever ran
            await self._offload(self._recorder.save)
        await self._offload(backend.device.close)

    async def _run(self, wiring: Wiring, ready: asyncio.Event) -> None:
        """The one task that owns the actors: they start in order and die together."""
        failure = EngineDead("the engine was closed")
        try:
            async with anyio.create_task_group() as group:
                for actor in wiring.actors:
                    await group.start(actor.run, name=type(actor).__name__)
                ready.set()
        except Exception as error:
            failure = EngineDead(f"an actor failed: {wiring.journal.failure}")
            failure.__cause__ = error
            self._dead = failure
        finally:
            ready.set()
            wiring.streams.fail_all(failure)
            wiring.control.close()
            wiring.grammars.close()
            if self._recorder is not None:  # not awaited here, where closing would cancel it
                self._saving = asyncio.ensure_future(self._offload(self._recorder.save))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # Requests

    async def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[Options]
    ) -> Result:
        """Answer a prompt, given as text or token ids.

        Raises RequestRejected or EngineOverloaded when it is refused, RequestFailed when it
        fails while it runs, EngineDead when the engine does. Cancelling the caller's task gives
        the request up.
        """
        return await self.stream(prompt, params, **options).result()

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[Options]
    ) -> DeltaStream:
        """Answer a prompt piece by piece; leaving the loop gives the request up."""
        intake, given, kept = self._intake, params or SamplingParams(), RequestOptions(**options)
        return self._stream(lambda: intake.submit(prompt, given, kept))

    async def chat(
        self,
        messages: Conversation,
        params: SamplingParams | None = None,
        **options: Unpack[ChatRequestOptions],
    ) -> Result:
        """Answer a conversation: messages with `role` and `content`, the last one the user's.

        With `continue_final_message` the last one is the model's own, and it goes on from there.
        """
        return await self.stream_chat(messages, params, **options).result()

    def stream_chat(
        self,
        messages: Conversation,
        params: SamplingParams | None = None,
        **options: Unpack[ChatRequestOptions],
    ) -> DeltaStream:
        """Answer a conversation piece by piece, as `chat` does; `Delta.parts` tells reasoning and
        calls of tools from the text."""
        rest, chat = without_chat_words(options)
        intake, given, kept = self._intake, params or SamplingParams(), RequestOptions(**rest)
        return self._stream(lambda: intake.submit_chat(messages, given, kept, chat))

    def _stream(self, submit: Callable[[], Awaitable[OutputStream]]) -> DeltaStream:
        for spans in self._spans:
            submit = spans.under_caller(submit)
        return DeltaStream(submit, self._intake.abandon)

    async def abort(self, request_id: str) -> None:
        """End a request with what there is; unknown and finished ids are no-ops."""
        self._intake.abort(request_id)

    # Facts

    @property
    def facts(self) -> DeviceFacts:
        """What was found out while the model was loaded."""
        return self._opened.device.facts

    @property
    def default_params(self) -> SamplingParams:
        """What the model's makers recommend; nothing applies it unless it is passed in."""
        return self._opened.default_params

    def stats(self) -> EngineStats:
        """Counts at this moment."""
        return self._started.stats()

    def _counts(self) -> dict[str, object]:
        """What a stats socket tells."""
        facts = self.facts
        about = {"model": facts.model, "device": facts.device, "dtype": facts.dtype}
        return {**about, **asdict(self._health()), **asdict(self.stats())}

    async def health(self) -> EngineHealth:
        """Whether the engine lives, and when it last made progress; never waits for the device."""
        return self._health()

    def _health(self) -> EngineHealth:
        wiring = self._started
        state: EngineState = "draining" if wiring.intake.is_draining else "running"
        if self._dead or self._closing:
            state = "dead" if self._dead else "closed"
        return EngineHealth(
            state=state,
            live_requests=len(wiring.streams),
            steps_in_flight=len(wiring.batcher.steps),
            seconds_since_progress=wiring.seconds_since_progress,
            cause=None if self._dead is None else str(self._dead),
        )

    # Guards

    @property
    def _intake(self) -> Intake:
        return self._started.intake

    @property
    def _started(self) -> Wiring:
        self._require_own_loop()
        if self._wiring is None:
            raise ConfigError("the engine has not been started; use `async with Engine(...)`")
        return self._wiring

    @property
    def _opened(self) -> Backend:
        if self._backend is None:
            raise ConfigError("the engine has not been started; use `async with Engine(...)`")
        return self._backend

    def _require_own_loop(self) -> None:
        if self._loop is not None and asyncio.get_running_loop() is not self._loop:
            raise ConfigError("the engine belongs to another event loop, the one it was started in")
