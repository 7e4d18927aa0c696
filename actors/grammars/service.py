"""The grammars of an engine: compiled away from the event loop, opened for each request."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from ...messages import (
    NO_INTS,
    Generate,
    RequestRejected,
    SamplingParams,
    StructuredOutput,
    frozen_ints,
)
from ..batching import Grammars
from ..offload import Offload
from ..text.tokenizer import Tokenizer
from .backend import Matcher
from .budget import NEAR, BudgetedGrammar
from .completion import LOOK, THOROUGH, Completion, Effort
from .tools import MakeBackend, Tools, make_llguidance, make_tools

COMPILE_S = 5.0  # what takes longer is refused
MAX_COMPILING = 2  # at once: what is overdue still holds a processor
MAX_KEPT = 256  # compiled structures
FAR = 512  # spare tokens beside a completion beyond which no token is looked at
MAX_COMPLETION = 4_096  # tokens; what cannot be completed in so many is not steered

_DEFAULTS = SamplingParams()
_LOOKS_AT_EACH = [
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "bad_words",
    "allowed_token_ids",
    "logit_bias",
    "logprobs",
    "logprob_token_ids",
    "logits_processors",
]


class GrammarService(Grammars, Protocol):
    """What Intake asks of the grammars of an engine, beside what the Batcher does."""

    async def prepare(self, structure: StructuredOutput, max_tokens: int) -> None:
        """Compile a structure. Raises RequestRejected where it cannot be followed."""
        ...

    def close(self) -> None:
        """Nobody waits for anything any more."""
        ...


@dataclass(frozen=True, slots=True)
class _Compiled:
    matcher: Matcher
    shortest: Completion | None  # that was found
    # By max_tokens, whether it is certain that no text fits; asked where the shortest does not.
    verdicts: dict[int, asyncio.Future[bool]] = field(default_factory=dict)


class StructuredGrammars:
    """Compiles structures for one model, and keeps the last ones."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        eos_token_ids: Collection[int],
        offload: Offload,
        compile_s: float = COMPILE_S,
        make_backend: MakeBackend = make_llguidance,
    ) -> None:
        self._make_tools = partial(
            make_tools, make_backend, tokenizer, vocab_size, frozenset(eos_token_ids)
        )
        self._eos_ids = frozen_ints(sorted(eos_token_ids))
        self._offload = offload
        self._compile_s = compile_s
        self._making: asyncio.Future[Tools] | None = None
        self._tools: Tools | None = None
        self._kept: OrderedDict[str, _Compiled] = OrderedDict()
        self._compiling: dict[str, asyncio.Future[_Compiled]] = {}
        self._places = asyncio.Semaphore(MAX_COMPILING)

    async def prepare(self, structure: StructuredOutput, max_tokens: int) -> None:
        compiled = self._kept.get(structure.key) or await self._compiled(structure)
        if structure.key in self._kept:
            self._kept.move_to_end(structure.key)
        assert self._tools is not None
        completer, shortest = self._tools.completer, compiled.shortest
        if shortest is not None and len(shortest) <= max_tokens:
            return
        if max_tokens not in compiled.verdicts:
            # On a copy, for a matcher is used by one thread at a time.
            prove = partial(completer.is_out_of_reach, compiled.matcher.copy(), max_tokens)
            compiled.verdicts[max_tokens] = asyncio.ensure_future(self._offload(prove))
        if await asyncio.shield(compiled.verdicts[max_tokens]):
            raise RequestRejected(
                f"structured_output has a {structure.kind} of which no text fits max_tokens, "
                f"which is {max_tokens}"
            )

    def open(self, request: Generate) -> BudgetedGrammar:
        assert request.grammar is not None
        compiled = self._kept.get(request.grammar)
        if compiled is None:  # in a replay, or long ago
            compiled = self._compile(StructuredOutput.of_key(request.grammar))
        assert self._tools is not None
        return BudgetedGrammar(
            compiled.matcher.copy(),
            self._tools.completer,
            max_tokens=request.max_tokens,
            min_tokens=request.params.min_tokens,
            shortest=compiled.shortest,
            eos_token_ids=NO_INTS if request.params.ignore_eos else self._eos_ids,
            may_jump=may_jump(request.params),
            near=_near(request.grammar),
            far=_far(request.grammar),
        )

    def close(self) -> None:
        """Nobody waits any more."""
        for task in (self._making, *self._compiling.values()):
            if task is not None:
                task.cancel()

    # Compiling

    async def _compiled(self, structure: StructuredOutput) -> _Compiled:
        """Wait for it, but no longer than the deadline; who comes later finds what came of it."""
        if self._tools is None:
            await self._make()
        task = self._compiling.get(structure.key)
        if task is None:
            task = asyncio.ensure_future(self._compile_elsewhere(structure))
            self._compiling[structure.key] = task
            task.add_done_callback(partial(self._keep, structure.key))
        await asyncio.wait({task}, timeout=self._compile_s)
        if not task.done():
            raise RequestRejected(
                f"structured_output has a {structure.kind} that takes longer to compile than "
                f"{self._compile_s:g} s; it must be simpler"
            )
        return task.result()

    async def _make(self) -> None:
        if self._making is None:
            self._making = asyncio.ensure_future(self._offload(self._make_tools))
        self._tools = await asyncio.shield(self._making)

    async def _compile_elsewhere(self, structure: StructuredOutput) -> _Compiled:
        async with self._places:
            return await self._offload(lambda: self._compile(structure))

    def _compile(self, structure: StructuredOutput) -> _Compiled:
        """On any thread."""
        if self._tools is None:
            self._tools = self._make_tools()
        try:
            matcher = self._tools.backend.compile(structure)
        except RequestRejected:
            raise
        except BaseException as error:  # a library that panics in Rust raises no Exception
            raise RequestRejected(
                f"structured_output has a {structure.kind} that cannot be compiled: {error}"
            ) from error
        if not matcher.may_end and not matcher.mask().any():
            raise RequestRejected(f"structured_output has a {structure.kind} that allows no text")
        shortest = self._tools.completer.find(matcher, MAX_COMPLETION, Effort(LOOK * THOROUGH))
        return _Compiled(matcher, shortest)

    def _keep(self, key: str, task: "asyncio.Future[_Compiled]") -> None:
        del self._compiling[key]
        if not task.cancelled() and task.exception() is None:
            self._kept[key] = task.result()
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)


def _near(key: str) -> int:
    """A guess of what one token of a structure may commit a text to: a part of all of it."""
    return max(NEAR, min(len(key) // 8, 3 * NEAR))


def _far(key: str) -> int:
    """What one token may commit a text to at most, as far as the structure spells it out or counts
    it: a long constant, a list of many."""
    counted = sum(min(int(number[:4]), MAX_COMPLETION) for number in re.findall("[0-9]+", key))
    return min(len(key) + 2 * counted, FAR)


def may_jump(params: SamplingParams) -> bool:
    """Whether tokens may be taken as said that no step sampled: nothing counts or tells them."""
    return all(
        getattr(params, name, None) == getattr(_DEFAULTS, name, None) for name in _LOOKS_AT_EACH
    )
