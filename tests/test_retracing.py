"""Grammars that are led along an answer stand where they stood, and go on as they would have."""

from collections.abc import Iterator

import numpy as np
import pytest

from stepahead.actors.batching.jumps import take_forced
from stepahead.actors.batching.retracing import retrace
from stepahead.actors.grammars.budget import BudgetedGrammar
from stepahead.actors.grammars.completion import unpacked
from stepahead.messages import Generate, Ints

from .batching import make_request
from .test_random_schemas import open_grammar, tokenizer

EOS = 2
SEEDS = range(1, 60, 2)  # of grammars that force tokens; 9 goes on otherwise if not asked for them


def go_on(
    grammar: BudgetedGrammar, request: Generate, said: list[int], rng: np.random.Generator
) -> Iterator[Ints]:
    """Say something at random to the end; yields what is allowed before each token."""
    while not grammar.is_over and len(said) < request.max_tokens:
        mask = grammar.mask()
        yield mask
        token_id = int(rng.choice(unpacked(mask, tokenizer().vocab_size).nonzero()[0]))
        if token_id == EOS:
            return
        assert grammar.accept(token_id)
        said.append(token_id)
        if not grammar.is_over:
            said += take_forced(grammar, request, request.max_tokens - len(said))


def retrace_on(
    grammar: BudgetedGrammar, request: Generate, said: list[int], place: int
) -> list[tuple[int, bytes]]:
    """Say the rest of an answer; returns what is allowed before each token that is chosen."""
    masks = []
    while place < len(said):
        assert grammar.accept(said[place])
        place += 1
        if not grammar.is_over:
            place += len(take_forced(grammar, request, request.max_tokens - place))
        if not grammar.is_over and place < request.max_tokens:
            masks.append((place, grammar.mask().tobytes()))
    return masks


@pytest.mark.parametrize("seed", SEEDS)
def test_a_grammar_that_is_led_along_goes_on_like_the_one_that_was_asked(seed: int) -> None:
    grammar, rng = open_grammar(seed)
    request = make_request(1, [1], max_tokens=grammar._left)
    said: list[int] = []
    masks: list[tuple[int, Ints]] = []
    for mask in go_on(grammar, request, said, rng):
        masks.append((len(said), mask))

    for length, mask in masks[:: max(len(masks) // 3, 1)]:
        led, _ = open_grammar(seed)
        assert (retrace(led, request, said[:length]) == mask).all()
        behind = retrace_on(led, request, said, length)
        assert behind == [(place, m.tobytes()) for place, m in masks if place > length]
