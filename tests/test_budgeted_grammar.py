"""A request's tokens run out under a grammar: what its mask refuses, and what that costs."""

import json
from typing import Any

import jsonschema
import pytest

from stepahead.actors.grammars.llguidance import LlguidanceMatcher
from stepahead.actors.virtual_time import run_virtual
from stepahead.messages import FinishReason, SamplingParams, StructuredOutput

from .engines import make_engine, virtual
from .test_random_schemas import open_grammar, say_on

LONG = {"enum": ["a", "x" * 700]}
MANY = {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "null"}, "minItems": 200}]}
CHAIN: dict[str, Any] = {
    "anyOf": [
        {"type": "boolean"},
        {
            "type": "object",
            "properties": {f"property number {n}": {"type": "integer"} for n in range(40)},
            "required": [f"property number {n}" for n in range(40)],
            "additionalProperties": False,
        },
    ]
}


@pytest.mark.parametrize("max_tokens", [60, 300])
@pytest.mark.parametrize("schema", [LONG, MANY, CHAIN], ids=["long", "many", "chain"])
def test_a_token_that_commits_the_text_to_more_than_is_left_is_not_allowed(
    schema: dict[str, Any], max_tokens: int
) -> None:
    async def scenario() -> None:
        structure = StructuredOutput.json_schema(schema)
        params = SamplingParams(max_tokens=max_tokens, structured_output=structure)
        async with make_engine(max_model_len=1_024, num_blocks=256) as engine:
            for number in range(8):
                result = await engine.generate(f"say {number}", params)
                assert result.finish_reason is FinishReason.STOP
                jsonschema.validate(json.loads(result.text), schema)

    run_virtual(scenario())


@virtual
async def test_a_long_way_is_not_refused_where_there_are_tokens_for_it() -> None:
    params = SamplingParams(
        max_tokens=800, structured_output=StructuredOutput.json_schema(LONG), temperature=1
    )
    async with make_engine(max_model_len=1_024, num_blocks=256) as engine:
        said = {len((await engine.generate(f"say {n}", params)).text) for n in range(12)}

    assert said == {3, 702}


@pytest.mark.parametrize("seed", [66, 143, 165, 67])
def test_the_places_that_are_looked_at_for_one_token_are_few(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What holds the event loop is counted, not timed: masks cost most of it."""
    masks = 0
    compute = LlguidanceMatcher.mask

    def count(matcher: LlguidanceMatcher) -> Any:
        nonlocal masks
        masks += 1
        return compute(matcher)

    monkeypatch.setattr(LlguidanceMatcher, "mask", count)
    most = 0
    grammar, rng = open_grammar(seed)
    while not grammar.is_over:
        masks = 0
        if not say_on(grammar, rng):
            break
        grammar.mask()
        most = max(most, masks)

    assert 1 < most <= 40
