"""Whatever a model likes, what it says under a schema is valid and whole: 200 random schemas, the
default model's tokens, and logits at random."""

import json
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest

from stepahead.actors.grammars.budget import BudgetedGrammar
from stepahead.actors.grammars.completion import THOROUGH, unpacked
from stepahead.actors.grammars.tools import Tools, make_llguidance, make_tools
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
def tools() -> Tools:
    return make_tools(make_llguidance, tokenizer(), 49_152, frozenset({EOS}))


def say(schema: dict[str, Any], seed: int) -> str:
    """A text under a schema, in little more than the tokens that are needed."""
    rng = np.random.default_rng(seed)
    completer = tools().completer
    matcher = tools().backend.compile(StructuredOutput.json_schema(schema))
    shortest = completer.find(matcher, 4_096, THOROUGH)
    assert shortest is not None
    grammar = BudgetedGrammar(
        matcher,
        completer,
        max_tokens=len(shortest) + int(rng.integers(1, 40)),
        shortest=shortest,
        eos_token_ids=frozen_ints([EOS]),
        may_jump=bool(seed % 2),
    )
    said: list[int] = []
    while not grammar.is_over:
        allowed = unpacked(grammar.mask(), completer.size).nonzero()[0]
        token_id = int(rng.choice(allowed))
        if token_id == EOS:
            break
        accepted = [token_id]
        assert grammar.accept(token_id)
        for forced in grammar.forced():
            assert grammar.accept(forced)
            accepted.append(forced)
        said += accepted
    return tokenizer().decode(said)


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_what_is_said_under_a_schema_is_valid(first: int) -> None:
    for seed in range(first, first + 20):
        schema = random_schema(seed)
        text = say(schema, seed)
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
