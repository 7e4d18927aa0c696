"""The second grammar backend behind the same protocol, and what it refuses by name."""

from typing import Any

import pytest

from stepahead import EngineConfig, RequestRejected, SamplingParams, StructuredOutput
from stepahead.actors.grammars.tools import Tools, make_tools, make_xgrammar
from stepahead.actors.text.toy import ToyTokenizer
from stepahead.actors.virtual_time import run_virtual
from stepahead.messages import ConfigError, FinishReason

from .engines import make_engine
from .test_structured_output import IS_RIGHT, STRUCTURES


def make() -> Tools:
    tokenizer = ToyTokenizer()
    return make_tools(make_xgrammar, tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_answer_has_the_structure_that_was_asked_for(name: str) -> None:
    async def scenario() -> None:
        params = SamplingParams(max_tokens=60, structured_output=STRUCTURES[name])
        async with make_engine(grammar_backend="xgrammar") as engine:
            for prompt in ("say", "tell", "sing"):
                result = await engine.generate(prompt, params)
                assert result.finish_reason is FinishReason.STOP
                assert IS_RIGHT[name](result.text), result.text

    run_virtual(scenario())


def test_choices_are_texts_and_not_expressions() -> None:
    texts = ['a"b\\c', "tab\tand\nline", "größe [a-z]* 語"]
    for text in texts:
        matcher = make().backend.compile(StructuredOutput.choice(texts))
        assert all(matcher.accept(token_id) for token_id in ToyTokenizer().encode(text))
        assert matcher.may_end
        assert not matcher.mask().any()


def test_looking_ahead_leaves_a_matcher_where_it_is() -> None:
    matcher = make().backend.compile(StructuredOutput.regex("ab(cd)?"))
    before = matcher.mask().tolist()

    assert [matcher.follow(text) for text in (b"ab", b"abcd")] == [3, 5]
    assert [matcher.follow(text) for text in (b"", b"x", b"ax", b"abc")] == [0, 0, 1, 3]
    assert matcher.mask().tolist() == before
    assert matcher.forced() == list(b"ab")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"not": {}}, "#/not: xgrammar does not follow this keyword"),
    ({"type": "array", "uniqueItems": True}, "#/uniqueItems"),
    ({"type": "array", "contains": {}}, "#/contains"),
    ({"properties": {"a": {"oneOf": [{}]}}, "type": "object"}, "#/properties/a/oneOf"),
    ({"type": "string", "format": "verse"}, "#/format: xgrammar does not follow 'verse'"),
    ({"type": "string", "pattern": "(?=a)b"}, "does not follow look-around"),
    ({"type": "string", "pattern": "a", "maxLength": 3}, "pattern beside a length"),
    ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, "more than one schema"),
    ({"$ref": "#/$defs/a", "minLength": 3, "$defs": {"a": {}}}, "$ref beside minLength"),
    ({"type": "integer", "enum": [1, "a"]}, "enum beside type"),
    ({"minimum": 3}, "minimum where type is None"),
    ({"type": ["string", "null"], "minLength": 3}, "minLength where type is"),
    ({"type": "strin"}, "#/type is 'strin'; it must be one of"),
    ({"$ref": "#/$defs/gone"}, "Cannot find field '$defs'"),
]


@pytest.mark.parametrize(("schema", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_it_would_pass_over_is_refused_by_name(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestRejected) as refusal:
        make().backend.compile(StructuredOutput.json_schema(schema))
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("structure", "words"),
    [
        (StructuredOutput.regex("(a"), "parenthesis is not closed"),
        (StructuredOutput.regex("(?=a)b"), "look-around"),
        (StructuredOutput.grammar("start: nowhere"), "unknown name 'nowhere'"),
    ],
)
def test_what_it_cannot_read_is_refused_in_its_words(
    structure: StructuredOutput, words: str
) -> None:
    with pytest.raises(RequestRejected) as refusal:
        make().backend.compile(structure)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_backend_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be one of llguidance, xgrammar"):
        EngineConfig(grammar_backend="regexes")  # type: ignore[arg-type]  # the mistake
