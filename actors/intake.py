"""Intake: turns a caller's words into a validated Generate, or refuses it.

Whatever is wrong with a request is found here, so that nothing after it can fail because of it.
"""

import itertools
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Protocol, TypeAlias, TypeGuard, TypeVar

import numpy as np

from ..gpu.device import DeviceFacts
from ..messages import (
    Abort,
    EngineOverloaded,
    Generate,
    RequestRejected,
    SamplingParams,
    seal,
)
from .actor import Address
from .streams import OutputStream, OutputStreams
from .text.tokenizer import Tokenizer

T = TypeVar("T")
Prompt: TypeAlias = str | Sequence[int]
Conversation: TypeAlias = Sequence[Mapping[str, object]]

INLINE_CHARACTERS = 2_000  # tokenising less takes no longer than a hop to another thread


class Offload(Protocol):
    """Runs a function away from the event loop; inline in a simulation."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """What a caller may say of a request beside its prompt and its sampling."""

    request_id: str | None = None  # None: the engine names it
    priority: int = 0  # lower runs first
    deadline: float | None = None  # seconds from now for the whole request
    queue_timeout: float | None = None  # seconds from now until it must have started
    cache_salt: str | None = None  # only requests with the same salt share cached blocks


class Intake:
    """Validates, tokenises and admits; posts Generate and Abort."""

    def __init__(
        self,
        facts: DeviceFacts,
        tokenizer: Tokenizer,
        streams: OutputStreams,
        *,
        max_live: int,
        offload: Offload,
        clock: Callable[[], int],
        scheduler: Address[Generate | Abort],
        detokenizer: Address[Generate],
    ) -> None:
        self._facts = facts
        self._tokenizer = tokenizer
        self._streams = streams
        self._max_live = max_live
        self._offload = offload
        self._clock = clock
        self._started_ns = clock()
        self._scheduler = scheduler
        self._detokenizer = detokenizer
        self._serials = itertools.count(1)
        self._eos_ids = facts.eos_token_ids | tokenizer.eos_token_ids

    async def submit(
        self, prompt: Prompt, params: SamplingParams, options: RequestOptions
    ) -> OutputStream:
        """Admit a prompt. Raises RequestRejected, EngineOverloaded or EngineDead."""
        self._check(params, options)
        with self._opened(options) as stream:
            return await self._admit(stream, await self._token_ids(prompt), params, options)

    async def submit_chat(
        self, messages: Conversation, params: SamplingParams, options: RequestOptions
    ) -> OutputStream:
        """Admit a conversation, written by the model's chat template."""
        self._check(params, options)
        with self._opened(options) as stream:
            size = len(str(messages))
            token_ids = await self._run(size, lambda: self._tokenizer.encode_chat(messages))
            return await self._admit(stream, token_ids, params, options)

    @contextmanager
    def _opened(self, options: RequestOptions) -> Iterator[OutputStream]:
        """The request is live from here on, so that it can be aborted while it is tokenised."""
        serial = next(self._serials)
        stream = self._streams.open(serial, options.request_id or self._free_id(serial))
        stream.opened_ns = self._clock()
        try:
            yield stream
        except BaseException:
            self._streams.discard(serial)
            raise

    def _free_id(self, serial: int) -> str:
        request_id = f"request-{serial}"
        while self._streams.serial_of(request_id) is not None:  # a caller chose the same
            request_id += "-again"
        return request_id

    async def _token_ids(self, prompt: Prompt) -> Sequence[int]:
        if not isinstance(prompt, str):
            return self._checked_ids(prompt)
        if not prompt:
            raise RequestRejected("the prompt is empty; it must hold at least one character")
        return await self._run(len(prompt), lambda: self._tokenizer.encode(prompt))

    async def prefix_ids(self, prompt: Prompt | Conversation) -> Sequence[int]:
        """The token ids of a prompt, or of a conversation that goes on. Raises RequestRejected."""
        token_ids: Sequence[int]
        if _is_conversation(prompt):
            encode = partial(self._tokenizer.encode_chat, prompt, add_generation_prompt=False)
            token_ids = await self._run(len(str(prompt)), encode)
        else:
            token_ids = await self._token_ids(prompt)  # type: ignore[arg-type]  # a prompt, then
        self._check_length(len(token_ids))
        return token_ids

    def abort(self, request_id: str) -> None:
        """Give up on a request by the caller's id; unknown or finished ids are no-ops."""
        serial = self._streams.serial_of(request_id)
        if serial is not None:
            self.abandon(serial)

    def abandon(self, serial: int) -> None:
        """Give up on a request by the engine's own id."""
        self._streams.give_up(serial)
        self._scheduler(Abort(serial))

    async def _run(self, size: int, function: Callable[[], T]) -> T:
        return function() if size <= INLINE_CHARACTERS else await self._offload(function)

    async def _admit(
        self,
        stream: OutputStream,
        token_ids: Sequence[int],
        params: SamplingParams,
        options: RequestOptions,
    ) -> OutputStream:
        self._check_length(len(token_ids))
        prompt = np.array(token_ids, dtype=np.int32)
        seal(prompt)
        salt = salt_bytes(options.cache_salt)
        self._streams.check_alive()
        max_tokens = self._max_tokens(params, len(prompt))
        if params.min_tokens > max_tokens:
            params = replace(params, min_tokens=max_tokens)
        request = Generate(
            serial=stream.serial,
            request_id=stream.request_id,
            prompt=prompt,
            params=params,
            seed=secrets.randbits(63) if params.seed is None else params.seed,
            max_tokens=max_tokens,
            stop_token_ids=self._stop_ids(params),
            priority=options.priority,
            deadline_ns=_after(stream.opened_ns, options.deadline),
            queue_deadline_ns=_after(stream.opened_ns, options.queue_timeout),
            cache_salt=salt,
        )
        self._detokenizer(request)
        self._scheduler(request)
        if stream.is_given_up:  # while it was tokenised; the Scheduler did not know it yet
            self._scheduler(Abort(stream.serial))
        return stream

    def _max_tokens(self, params: SamplingParams, num_prompt: int) -> int:
        room = self._facts.max_model_len - num_prompt
        return room if params.max_tokens is None else min(params.max_tokens, room)

    def _stop_ids(self, params: SamplingParams) -> tuple[int, ...]:
        eos: frozenset[int] = frozenset() if params.ignore_eos else self._eos_ids
        return tuple(sorted(eos | set(params.stop_token_ids)))

    # Refusals

    def _check(self, params: SamplingParams, options: RequestOptions) -> None:
        self._streams.check_alive()
        self._check_room(options.request_id)
        if not isinstance(params, SamplingParams):
            raise RequestRejected(f"params is {_short(params)}; it must be SamplingParams")
        vocab_size = self._facts.vocab_size
        for token_id in params.stop_token_ids:
            if token_id >= vocab_size:
                raise RequestRejected(
                    f"stop_token_ids holds {token_id}; "
                    f"the model's ids go from 0 to {vocab_size - 1}"
                )
        if isinstance(options.priority, bool) or not isinstance(options.priority, int):
            raise RequestRejected(f"priority is {options.priority!r}; it must be a whole number")
        if not -(2**31) <= options.priority < 2**31:
            raise RequestRejected(f"priority is {options.priority}; it must fit 32 bits")
        check_seconds("deadline", options.deadline)
        check_seconds("queue_timeout", options.queue_timeout)
        check_salt(options.cache_salt)

    def _check_room(self, request_id: str | None) -> None:
        if request_id is not None:
            if not isinstance(request_id, str) or not request_id:
                raise RequestRejected(f"request_id is {request_id!r}; it must be a string")
            if self._streams.serial_of(request_id) is not None:
                raise RequestRejected(
                    f"request_id {request_id!r} is that of a live request; ids must differ"
                )
        if len(self._streams) >= self._max_live:
            raise EngineOverloaded(
                f"{len(self._streams)} requests are running or waiting, which is as many as the "
                "engine holds; try again later",
                retry_after=self._seconds_per_request(),
            )

    def _seconds_per_request(self) -> float:
        """How long it took on average until one request finished and made room."""
        elapsed_s = (self._clock() - self._started_ns) / 1e9
        return min(max(elapsed_s / max(self._streams.finished, 1), 0.1), 60.0)

    def _check_length(self, num_tokens: int) -> None:
        if num_tokens == 0:
            raise RequestRejected("the prompt is empty; it must hold at least one token")
        most = self._facts.max_model_len - 1
        if num_tokens > most:
            raise RequestRejected(
                f"the prompt has {num_tokens:,} tokens; it may have {most:,}, because the context "
                f"is {most + 1:,} tokens ({self._facts.num_blocks:,} KV blocks of "
                f"{self._facts.block_size}) and must hold at least one more"
            )

    def _checked_ids(self, prompt: Sequence[int]) -> Sequence[int]:
        is_row = (
            prompt.ndim == 1 if isinstance(prompt, np.ndarray) else isinstance(prompt, Sequence)
        )
        if not is_row or isinstance(prompt, bytes):
            raise RequestRejected(
                f"the prompt is {_short(prompt)}; it must be text or a sequence of token ids"
            )
        vocab_size = self._facts.vocab_size
        for token_id in prompt:
            is_id = isinstance(token_id, (int, np.integer)) and not isinstance(token_id, bool)
            if not is_id or not 0 <= token_id < vocab_size:
                raise RequestRejected(
                    f"the prompt holds {_short(token_id)}; token ids go from 0 to {vocab_size - 1}"
                )
        return prompt


def salt_bytes(cache_salt: str | None) -> bytes:
    """A salt as the pool compares it; None and the empty one are the same."""
    return (cache_salt or "").encode(errors="surrogatepass")


def check_salt(cache_salt: object) -> None:
    if cache_salt is not None and not isinstance(cache_salt, str):
        raise RequestRejected(f"cache_salt is {_short(cache_salt)}; it must be a text")


def check_seconds(name: str, seconds: object) -> None:
    if seconds is not None and not _is_duration(seconds):
        raise RequestRejected(
            f"{name} is {_short(seconds)}; it must be above 0 and below 1e9 seconds"
        )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_conversation(prompt: Prompt | Conversation) -> TypeGuard[Conversation]:
    is_list = isinstance(prompt, Sequence) and not isinstance(prompt, str)
    return is_list and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def _is_duration(seconds: object) -> bool:
    is_number = isinstance(seconds, Real) and not isinstance(seconds, bool)
    return is_number and 0 < seconds < 1e9  # type: ignore[operator]  # a number, as just checked


def _after(now_ns: int, seconds: float | None) -> int | None:
    return None if seconds is None else now_ns + int(seconds * 1e9)
