"""Scripted grammars, and what an undisturbed run says under one.

A grammar's text is its kind and a number: `over 7` is over after seven tokens, `open 0` never,
`refuse 3` refuses the third token though its mask allows it, `dead 3` allows none after three,
`jump 4` forces all but every fifth token, from the fourth on, and `dear 3` is never over, but three
of its tokens are as much as a turn looks at.
"""

from copy import copy

import numpy as np

from stepahead.actors.batching.structured import TURN_COST
from stepahead.actors.grammars.service import may_jump
from stepahead.gpu.oracle import Oracle
from stepahead.messages import FinishReason, Generate, Ints, frozen_ints

EOS = 256
WORDS = 16  # masks of 512 tokens


class ScriptedGrammar:
    """What it allows depends on every token before."""

    def __init__(self, text: str, *, jumps: bool = True) -> None:
        self._jumps = jumps
        kind, number = text.split()
        self._kind, self._number = kind, int(number)
        self._count = self._state = 0

    def accept(self, token_id: int) -> bool:
        if token_id not in self.allowed():
            return False
        self._count += 1
        self._state = (self._state * 31 + token_id) % 1009
        return not (self._kind == "refuse" and self._count == self._number)

    def allowed(self) -> set[int]:
        if self._kind == "jump" and self._count % 5 != self._number % 5:
            return {32 + self._state % 95}
        if self._kind == "dead" and self._count == self._number:
            return set()
        spoken = {32 + i for i in range(95) if (i * 7 + self._state) % 3 == 0}
        return spoken | {EOS} if self._state % 2 else spoken

    def mask(self) -> Ints:
        bits = np.zeros(32 * WORDS, dtype=np.bool_)
        bits[list(self.allowed())] = True
        return frozen_ints(np.packbits(bits, bitorder="little").view("<i4"))

    def forced(self) -> list[int]:
        token_ids: list[int] = []
        ahead = copy(self)
        if self._kind != "jump" or not self._jumps:
            return token_ids
        while len(allowed := ahead.allowed()) == 1:
            token_ids += allowed
            ahead.accept(token_ids[-1])
        return token_ids

    is_steered = False

    @property
    def cost(self) -> int:
        return -(-TURN_COST // self._number) if self._kind == "dear" else 0

    @property
    def is_over(self) -> bool:
        return self._kind == "over" and self._count >= self._number


class ScriptedGrammars:
    """Opens any scripted grammar at once."""

    def open(self, request: Generate) -> ScriptedGrammar:
        assert request.grammar is not None
        return ScriptedGrammar(request.grammar, jumps=may_jump(request.params))


def structured_answer(
    oracles: list[tuple[int, Oracle]], request: Generate
) -> tuple[list[int], FinishReason]:
    """What a structured request says that nothing disturbs, and how it ends; each oracle speaks
    from an output token on."""
    assert request.grammar is not None
    grammar = ScriptedGrammar(request.grammar)
    prompt = request.prompt.tolist()
    said: list[int] = []
    while not grammar.is_over:
        if not grammar.allowed():
            return said, FinishReason.ERROR
        oracle = [oracle for start, oracle in oracles if start <= len(said)][-1]
        prefix = oracle.extend(oracle.empty, [*prompt, *said])[-1]
        is_early = len(said) < request.params.min_tokens
        banned = request.stop_token_ids if is_early else ()
        said.append(oracle.next_token(prefix, banned=banned, allowed=grammar.allowed()))
        if said[-1] in request.stop_token_ids and not is_early:
            return said, FinishReason.STOP
        if not grammar.accept(said[-1]):
            return said, FinishReason.ERROR
        if len(said) == request.max_tokens and not grammar.is_over:
            return said, FinishReason.LENGTH if grammar.allowed() else FinishReason.ERROR
    return said, FinishReason.STOP
