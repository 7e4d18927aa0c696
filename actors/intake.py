"""Intake: turns a caller's words into a validated Generate, or refuses it.

Whatever is wrong with a request is found here, so that nothing after it can fail because of it.
"""

import secrets
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

from ..gpu.device import DeviceFacts
from ..messages import (
    Abort,
    ChatFormat,
    EngineOverloaded,
    Generate,
    GrammarReady,
    Ints,
    RequestRejected,
    SamplingParams,
)
from ..messages.param_rules import shown
from .actor import Address
from .chat_options import ChatOptions
from .grammars import GrammarService
from .logprob_limits import LogprobLimits, check_start
from .offload import Offload
from .param_checks import check_against_model
from .prompt_texts import Conversation, Prompt, PromptTexts, is_conversation
from .prompts import PromptReader
from .request_options import RequestOptions, salt_bytes
from .streams import OutputStream, OutputStreams
from .text.tokenizer import Tokenizer


class Intake:
    """Validates, tokenises and admits; posts Generate and Abort."""

    def __init__(
        self,
        facts: DeviceFacts,
        tokenizer: Tokenizer,
        streams: OutputStreams,
        *,
        max_live: int,
        max_logprobs: int,
        offload: Offload,
        clock: Callable[[], int],
        grammars: GrammarService,
        scheduler: Address[Generate | GrammarReady | Abort],
        detokenizer: Address[Generate],
    ) -> None:
        self._facts = facts
        self._tokenizer = tokenizer
        self._streams = streams
        self._max_live = max_live
        self._logprobs = LogprobLimits(facts.vocab_size, max_logprobs)
        self.texts = PromptTexts(tokenizer, PromptReader(facts), offload)
        self._clock = clock
        self._started_ns = clock()
        self._grammars = grammars
        self._scheduler = scheduler
        self._detokenizer = detokenizer
        self._next_serial = 1
        self.is_draining = False  # then nothing new is admitted
        self._eos_ids = tuple(sorted(facts.eos_token_ids | tokenizer.eos_token_ids))

    async def submit(
        self, prompt: Prompt, params: SamplingParams, options: RequestOptions
    ) -> OutputStream:
        """Admit a prompt. Raises RequestRejected, EngineOverloaded or EngineDead."""
        return await self._submit(lambda: self._read(prompt), params, options)

    async def submit_chat(
        self,
        messages: Conversation,
        params: SamplingParams,
        options: RequestOptions,
        chat: ChatOptions,
    ) -> OutputStream:
        """Admit a conversation, written by the model's chat template."""
        return await self._submit(lambda: self.texts.read_chat(messages, chat), params, options)

    async def _read(self, prompt: Prompt) -> tuple[Ints, None]:
        return await self.texts.read(prompt), None

    async def _submit(
        self,
        read: Callable[[], Awaitable[tuple[Ints, ChatFormat | None]]],
        params: SamplingParams,
        options: RequestOptions,
    ) -> OutputStream:
        """The request is live before its prompt is read, so that it can be aborted meanwhile."""
        self._check(params, options)
        stream = self._open(options, params.n)
        try:
            prompt, chat = await read()
            if params.structured_output is not None:
                await self._grammars.prepare(
                    params.structured_output, self._max_tokens(params, len(prompt))
                )
            bad_words = await self.texts.bad_words(params.bad_words)
            request = self._request(stream, prompt, params, options, chat, bad_words)
        except BaseException:
            self._streams.discard(stream)
            raise
        for sibling in _siblings(request):
            self._detokenizer(sibling)
            self._scheduler(sibling)
            if request.grammar is not None:
                self._scheduler(GrammarReady(sibling.serial))
        if stream.is_given_up:  # while it was tokenised; the Scheduler did not know it yet
            self._abort(stream)
        return stream

    def _open(self, options: RequestOptions, count: int) -> OutputStream:
        serial = self._next_serial
        self._next_serial += count
        stream = self._streams.open(serial, options.request_id or self._free_id(serial), count)
        stream.opened_ns = self._clock()
        return stream

    def _free_id(self, serial: int) -> str:
        request_id = f"request-{serial}"
        while self._streams.of(request_id) is not None:  # a caller chose the same
            request_id += "-again"
        return request_id

    async def prefix_ids(self, prompt: Prompt | Conversation) -> Ints:
        """The token ids of a prompt, or of a conversation that goes on. Raises RequestRejected."""
        if is_conversation(prompt):
            return (await self.texts.read_chat(prompt, ChatOptions(), is_open=True))[0]
        return await self.texts.read(prompt)  # type: ignore[arg-type]  # a prompt, then

    def abort(self, request_id: str) -> None:
        """Give up on a request by the caller's id; unknown or finished ids are no-ops."""
        stream = self._streams.of(request_id)
        if stream is not None:
            self.abandon(stream)

    def abandon(self, stream: OutputStream) -> None:
        """Give up on a request, perhaps before the Scheduler knows it."""
        stream.is_given_up = True
        self._abort(stream)

    def _abort(self, stream: OutputStream) -> None:
        for serial in stream.serials:
            self._scheduler(Abort(serial))

    def _request(
        self,
        stream: OutputStream,
        prompt: Ints,
        params: SamplingParams,
        options: RequestOptions,
        chat: ChatFormat | None,
        bad_words: tuple[tuple[int, ...], ...],
    ) -> Generate:
        salt, structure = salt_bytes(options.cache_salt), params.structured_output
        self._streams.check_alive()
        check_start(params, len(prompt))
        max_tokens = self._max_tokens(params, len(prompt))
        if params.min_tokens > max_tokens:
            params = replace(params, min_tokens=max_tokens)
        params = self._logprobs.counted(params)
        return Generate(
            serial=stream.serial,
            request_id=stream.request_id,
            prompt=prompt,
            params=params,
            seed=secrets.randbits(63) if params.seed is None else params.seed,
            max_tokens=max_tokens,
            stop_token_ids=self._stop_ids(params),
            priority=int(options.priority),
            deadline_ns=_after(stream.opened_ns, options.deadline),
            queue_deadline_ns=_after(stream.opened_ns, options.queue_timeout),
            cache_salt=salt,
            grammar=None if structure is None else structure.key,
            chat=chat,
            bad_words=bad_words,
        )

    def _max_tokens(self, params: SamplingParams, num_prompt: int) -> int:
        room = self._facts.max_model_len - num_prompt
        return room if params.max_tokens is None else min(params.max_tokens, room)

    def _stop_ids(self, params: SamplingParams) -> tuple[int, ...]:
        eos = () if params.ignore_eos else self._eos_ids
        if not params.stop_token_ids:
            return eos
        return tuple(sorted({*eos, *params.stop_token_ids}))

    # Refusals

    def _check(self, params: SamplingParams, options: RequestOptions) -> None:
        self._streams.check_alive()
        options.check()
        if not isinstance(params, SamplingParams):
            raise RequestRejected(f"params is {shown(params)}; it must be SamplingParams")
        self._check_room(options.request_id, params.n)
        self._logprobs.check(params)
        check_against_model(params, self._facts)

    def _check_room(self, request_id: str | None, count: int) -> None:
        if count > self._max_live:
            raise RequestRejected(
                f"n is {count}; the engine holds {self._max_live} answers at once"
            )
        if request_id is not None and self._streams.of(request_id) is not None:
            raise RequestRejected(
                f"request_id {request_id!r} is that of a live request; ids must differ"
            )
        if self.is_draining:
            raise EngineOverloaded(
                "the engine is draining: it finishes the requests it has and takes no new ones",
                retry_after=self._seconds_per_request(),
            )
        if len(self._streams) + count > self._max_live:
            raise EngineOverloaded(
                f"{len(self._streams)} requests are running or waiting, which is as many as the "
                "engine holds; try again later",
                retry_after=self._seconds_per_request(),
            )

    def _seconds_per_request(self) -> float:
        """How long it took on average until one request finished and made room."""
        elapsed_s = (self._clock() - self._started_ns) / 1e9
        return min(max(elapsed_s / max(self._streams.finished, 1), 0.1), 60.0)


def _siblings(request: Generate) -> Iterator[Generate]:
    """A request for each of the answers, in the order of their serials. Those after the first find
    its prompt in the prefix cache, and need not tell of it again."""
    yield request
    params = request.params
    if params.prompt_logprobs is not None:
        params = replace(params, prompt_logprobs=None)
    for index in range(1, request.params.n):
        yield replace(request, serial=request.serial + index, index=index, params=params)


def _after(now_ns: int, seconds: float | None) -> int | None:
    return None if seconds is None else now_ns + int(seconds * 1e9)
