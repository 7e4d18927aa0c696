"""Whatever a model likes, what it says under a schema is valid and whole: 200 random schemas, the
default model's tokens, and logits at random."""

import json
from functools import cache

import jsonschema
import numpy as np
import pytest

from stepahead.actors.grammars.budget import BudgetedGrammar
from stepahead.actors.grammars.completion import LOOK, THOROUGH, Effort, unpacked
from stepahead.actors.grammars.tools import BACKENDS, Tools, make_tools
from stepahead.actors.text.loading import load_tokenizer
from stepahead.actors.text.tokenizer import Tokenizer
from stepahead.gpu.loading.resolve import resolve_model
from stepahead.messages import StructuredOutput, frozen_ints

from .random_schemas import random_schema

EOS = 2


@cache
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve_model("smollm2-135m"))


@cache
def tools(backend: str) -> Tools:
    return make_tools(BACKENDS[backend], tokenizer(), 49_152, frozenset({EOS}))


def open_grammar(
    seed: int, backend: str = "llguidance"
) -> tuple[BudgetedGrammar, np.random.Generator]:
    """A random schema with little more than the tokens that it needs, and what to choose with."""
    rng = np.random.default_rng(seed)
    completer = tools(backend).completer
    matcher = tools(backend).backend.compile(StructuredOutput.json_schema(random_schema(seed)))
    shortest = completer.find(matcher, 4_096, Effort(LOOK * THOROUGH))
    assert shortest is not None
    grammar = BudgetedGrammar(
        matcher,
        completer,
        max_tokens=len(shortest) + int(rng.integers(1, 40)),
        shortest=shortest,
        eos_token_ids=frozen_ints([EOS]),
        may_jump=bool(seed % 2),
    )
    return grammar, rng


def say_on(grammar: BudgetedGrammar, rng: np.random.Generator) -> list[int]:
    """One token at random, and what it forces; none where that is the end."""
    allowed = unpacked(grammar.mask(), tokenizer().vocab_size).nonzero()[0]
    said = [int(rng.choice(allowed))]
    if said == [EOS]:
        return []
    assert grammar.accept(said[0])
    for forced in grammar.forced():
        assert grammar.accept(forced)
        said.append(forced)
    return said


def say(seed: int, backend: str) -> str:
    grammar, rng = open_grammar(seed, backend)
    said: list[int] = []
    while not grammar.is_over:
        more = say_on(grammar, rng)
        if not more:
            break
        said += more
    return tokenizer().decode(said)


@pytest.mark.parametrize(
    ("backend", "first"),
    [*(("llguidance", first) for first in range(0, 200, 20)), ("xgrammar", 60)],
)
def test_what_is_said_under_a_schema_is_valid(backend: str, first: int) -> None:
    for seed in range(first, first + 20):
        schema = random_schema(seed)
        text = json.loads(say(seed, backend))
        jsonschema.validate(text, schema, jsonschema.Draft202012Validator)
