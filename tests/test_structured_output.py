"""Structured output through the whole engine, in virtual time: real grammars over a simulated
model, which says at random what it may."""

import asyncio
import json
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema
import pytest

from stepahead import Engine, RequestRejected, SamplingParams, StructuredOutput
from stepahead.actors.grammars import GrammarBackend, Matcher, StructuredGrammars
from stepahead.actors.grammars.tools import make_llguidance
from stepahead.actors.grammars.vocabulary import TokenBytes
from stepahead.actors.offload import offload_to_thread
from stepahead.actors.text.toy import ToyTokenizer
from stepahead.actors.virtual_time import run_virtual
from stepahead.gpu.oracle import Oracle
from stepahead.gpu.simulated import SimulatedDevice
from stepahead.messages import FinishReason, RequestFailed, SampleRows

from .batching import make_request
from .engines import (
    STEP,
    inline,
    is_empty,
    make_config,
    make_engine,
    make_facts,
    settle,
    virtual,
)

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
STRUCTURES = {
    "schema": StructuredOutput.json_schema(PERSON),
    "object": StructuredOutput.json_object(),
    "regex": StructuredOutput.regex("[ab]{6}(-[0-9]+)?"),
    "choice": StructuredOutput.choice(["yes", "no", "perhaps not"]),
    "grammar": StructuredOutput.grammar('start: "(" (start | /[a-z]{1,3}/) ")"'),
}
IS_RIGHT: dict[str, Callable[[str], bool]] = {
    "schema": lambda text: jsonschema.Draft202012Validator(PERSON).is_valid(json.loads(text)),
    "object": lambda text: isinstance(json.loads(text), dict),
    "regex": lambda text: set(text[:6]) <= {"a", "b"} and text[6:7] in ("", "-"),
    "choice": lambda text: text in ("yes", "no", "perhaps not"),
    "grammar": lambda text: text.strip("()").isalpha() and text.count("(") == text.count(")"),
}


def params(structure: StructuredOutput | None, **more: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 60, "structured_output": structure, **more})


async def answers(engine: Engine, structures: Sequence[StructuredOutput | None]) -> list[str]:
    asked = (engine.generate(f"say {n}", params(s)) for n, s in enumerate(structures))
    return [result.text for result in await asyncio.gather(*asked)]


# What is asked for is what comes


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_answer_has_the_structure_that_was_asked_for(name: str) -> None:
    async def scenario() -> None:
        async with make_engine() as engine:
            for prompt in ("say", "tell", "sing"):
                result = await engine.generate(prompt, params(STRUCTURES[name]))
                assert result.finish_reason is FinishReason.STOP
                assert IS_RIGHT[name](result.text), result.text

    run_virtual(scenario())


@pytest.mark.parametrize(
    "options",
    [
        {"steps_in_flight": 1},
        {"steps_in_flight": 4},
        {"long_prefill_token_threshold": 3},
        {"num_blocks": 24, "steps_in_flight": 3},
    ],
)
def test_what_is_said_does_not_depend_on_steps_chunks_or_preemptions(
    options: dict[str, Any],
) -> None:
    """Field case 076, among others: masks come in time with several steps in flight."""

    async def scenario() -> None:
        structures = [*STRUCTURES.values(), None] * 3
        async with make_engine() as engine:
            alone = []
            for number, structure in enumerate(structures):
                result = await engine.generate(f"say {number}", params(structure))
                alone.append(result.text)
        async with make_engine(check_invariants=True, **options) as engine:
            assert await answers(engine, structures) == alone
            await settle(engine, 4)
            assert is_empty(engine)

    run_virtual(scenario())


@virtual
async def test_a_turn_of_the_loop_makes_masks_for_few_of_many_rows() -> None:
    """A mask takes a tenth of a millisecond, and other requests wait for the loop meanwhile."""
    told: list[int] = []  # rows that got their masks together

    class Listening(SimulatedDevice):
        def sample(self, masks: SampleRows) -> None:
            told.append(len(masks.rows))
            super().sample(masks)

    config = make_config(max_num_seqs=40, num_blocks=512)
    clock = asyncio.get_running_loop().call_later
    device = Listening(make_facts(config), 2 * config.max_num_seqs, clock, step_time=STEP)
    async with make_engine(device=device, max_num_seqs=40, num_blocks=512) as engine:
        texts = await answers(engine, [StructuredOutput.regex("[a-z ]{300}")] * 40)

    assert [len(text) for text in texts] == [60] * 40
    assert 8 <= max(told) <= 16


@virtual
async def test_forced_tokens_take_no_step_of_their_own() -> None:
    """A row whose logprobs are told samples every token; what is said is the same."""
    structure = StructuredOutput.choice(["a long text that cannot be anything else"])
    async with make_engine() as engine:
        fast = await engine.generate("say", params(structure))
        slow = await engine.generate("say", params(structure, logprobs=1))

    assert fast.text == slow.text
    assert fast.token_ids == slow.token_ids
    assert fast.timings.decode_s < slow.timings.decode_s / 3


@virtual
async def test_siblings_and_parameters_hold_together_with_a_structure() -> None:
    async with make_engine() as engine:
        ended = await engine.generate("say", params(STRUCTURES["schema"], stop=[":"]))
        early = await engine.generate("say", params(StructuredOutput.regex("a+"), min_tokens=20))
        on = StructuredOutput.regex("(ab)+")
        pair = await engine.generate("say", params(STRUCTURES["schema"], n=2))
        going_on = await engine.generate("say", params(on, ignore_eos=True, max_tokens=21))

    assert (ended.finish_reason, ended.stop_reason) == (FinishReason.STOP, ":")
    assert all(IS_RIGHT["schema"](output.text) for output in pair.outputs)
    assert len(pair.outputs) == 2
    assert ended.text.rstrip().endswith('"')
    assert len(early.text) >= 20
    assert (going_on.text, going_on.stop_reason) == ("ab" * 10, "max_tokens")


# The end does not come too early


LONG_ENOUGH: dict[str, tuple[StructuredOutput, Callable[[str], bool]]] = {
    "object": (STRUCTURES["object"], IS_RIGHT["object"]),
    "schema": (
        StructuredOutput.json_schema({"type": "array", "items": {"type": "string"}}),
        lambda text: isinstance(json.loads(text), list),
    ),
    "regex": (StructuredOutput.regex("([ab]{3},){0,8}[ab]"), lambda text: text[-1] in "ab"),
    "choice": (
        StructuredOutput.choice(["no", "no, and nothing else either"]),
        lambda text: text == "no, and nothing else either",
    ),
    "grammar": (
        StructuredOutput.grammar('start: "(" /[a-z]/* ")"'),
        lambda text: text[0] + text[-1] == "()",
    ),
}


@pytest.mark.parametrize("name", LONG_ENOUGH)
def test_what_would_end_a_text_before_min_tokens_is_not_said(name: str) -> None:
    structure, is_right = LONG_ENOUGH[name]

    async def scenario() -> None:
        async with make_engine() as engine:
            asked = (
                engine.generate(f"say {n}", params(structure, min_tokens=20)) for n in range(12)
            )
            for result in await asyncio.gather(*asked):
                assert len(result.token_ids) >= 20
                assert result.finish_reason is FinishReason.STOP
                assert is_right(result.text)

    run_virtual(scenario())


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_structure_that_leaves_nothing_longer_ends_before_min_tokens(name: str) -> None:
    structures = {
        "schema": StructuredOutput.json_schema({"enum": [True, None]}),
        "object": StructuredOutput.json_schema({"type": "object", "maxProperties": 0}),
        "regex": StructuredOutput.regex("[ab]{3}"),
        "choice": STRUCTURES["choice"],
        "grammar": StructuredOutput.grammar('start: "(" ")"'),
    }

    async def scenario() -> None:
        async with make_engine() as engine:
            result = await engine.generate("say", params(structures[name], min_tokens=40))
        assert result.finish_reason is FinishReason.STOP
        assert result.stop_reason is None
        assert 0 < len(result.token_ids) < 40

    run_virtual(scenario())


# The end comes in time


@virtual
async def test_json_is_whole_although_white_space_is_what_the_model_likes_best() -> None:
    """Field case 077."""

    class Newlines(Oracle):
        """Whenever it may, it says a newline."""

        def next_token(
            self, prefix: int, *, banned: Sequence[int] = (), allowed: Collection[int] | None = None
        ) -> int:
            is_allowed = allowed is None or 10 in allowed
            return 10 if is_allowed else Oracle.next_token(self, prefix, allowed=allowed)

    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    async with make_engine(oracle=Newlines()) as engine:
        structure = StructuredOutput.json_schema(schema)
        result = await engine.generate("say", params(structure, max_tokens=50))

    assert result.finish_reason is FinishReason.STOP
    jsonschema.validate(json.loads(result.text), schema)
    assert "\n\n" not in result.text


@pytest.mark.parametrize("max_tokens", [20, 24, 33, 60])
def test_a_text_is_brought_to_its_end_before_its_tokens_run_out(max_tokens: int) -> None:
    async def scenario() -> None:
        async with make_engine() as engine:
            asked = params(STRUCTURES["schema"], max_tokens=max_tokens)
            result = await engine.generate("say", asked)
        assert result.finish_reason is FinishReason.STOP
        assert result.stop_reason == "max_tokens" or max_tokens > 24
        assert len(result.token_ids) <= max_tokens
        jsonschema.validate(json.loads(result.text), PERSON)

    run_virtual(scenario())


@virtual
async def test_what_has_ended_is_fed_no_more_tokens() -> None:
    """Field case 074: tokens in flight behind the end of a grammar are dropped."""
    async with make_engine(steps_in_flight=4, check_invariants=True) as engine:
        structure = StructuredOutput.regex("[a-c]{3}")
        results = await asyncio.gather(
            *(engine.generate(f"say {number}", params(structure)) for number in range(8))
        )

    for result in results:
        assert result.finish_reason is FinishReason.STOP
        assert len(result.text) == len(result.token_ids) == 3


# Refusals


@dataclass(frozen=True)
class Refused:
    """A structure that is wrong, and what the sentence about it says."""

    kind: str
    given: object
    words: str

    def params(self) -> SamplingParams:
        return SamplingParams.from_dict({"structured_output": {self.kind: self.given}})


REFUSED = [
    Refused("json_schema", {"properties": {"a": "string"}}, "#/properties/a is 'string'; it must"),
    Refused("json_schema", {"type": "strin"}, "#/type is 'strin'; it must be one of"),
    Refused("json_schema", {"anyOf": {}}, "#/anyOf is {}; it must be a list"),
    Refused("json_schema", {"type": 7}, "#/type is 7"),
    Refused("json_schema", {"not": {}}, 'Unimplemented keys: ["not"]'),
    Refused("json_schema", {"$ref": "#/$defs/gone"}, "/$defs/gone"),
    Refused("json_schema", {"type": "integer", "minimum": 2, "maximum": 1}, "minimum (2) is great"),
    Refused("json_schema", {"type": "string", "format": "verse"}, "Unknown format: verse"),
    Refused("json_schema", [1], "json_schema is a list; it must be a schema"),
    Refused("json_schema", '{"type": ', "json_schema is not JSON"),
    Refused("json_schema", {"const": float("nan")}, "not JSON"),
    Refused("json_schema", {"enum": ["x" * 300_000]}, "characters; it may have 262,144"),
    Refused("regex", "(a", "has a regex that is refused: unclosed group"),
    Refused("regex", "(?=a)b", "look-around"),
    Refused("regex", "", "it must be a text that is not empty"),
    Refused("choice", [], "it must have 1 to"),
    Refused("choice", "yes", "it must be a list of texts"),
    Refused("choice", ["a", ""], "it must be a text that is not empty"),
    Refused("grammar", "start: nowhere", "unknown name"),
    Refused("grammar", 'start: "a', "lexer error"),
    Refused("verse", "ode", "it must be None, StructuredOutput, or an object with one of"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case.kind} {case.words[:30]}")
def test_a_structure_that_cannot_be_followed_is_refused_in_words(case: Refused) -> None:
    """Field case 070: the engine lives, and the next request is served."""

    async def scenario() -> None:
        async with make_engine() as engine:
            with pytest.raises(RequestRejected) as refusal:
                await engine.generate("say", case.params())
            assert case.words in str(refusal.value)
            assert "\n" not in str(refusal.value)
            assert await answers(engine, [STRUCTURES["choice"]])

    run_virtual(scenario())


async def test_many_may_ask_for_the_same_structure_at_once() -> None:
    """On threads; a matcher of llguidance is used by one of them at a time."""
    grammars = faulty_grammars(lambda: None, offload=offload_to_thread)
    structure = StructuredOutput.json_schema({"type": "array", "minItems": 50})
    request = make_request(0, grammar=structure.key)

    async def ask() -> None:
        await grammars.prepare(structure, 9)
        assert grammars.open(request).mask().any()

    await asyncio.gather(*(ask() for _ in range(8)))


@pytest.mark.parametrize(
    ("structure", "max_tokens", "is_refused"),
    [
        (StructuredOutput.choice(["yes", "nope"]), 2, True),
        (StructuredOutput.choice(["yes", "nope"]), 3, False),
        (StructuredOutput.regex("[0-9]{4}"), 3, True),
        (STRUCTURES["schema"], 2, True),
        (STRUCTURES["schema"], 12, False),  # too many texts to be certain
    ],
)
def test_a_structure_of_which_nothing_fits_is_refused_where_that_is_certain(
    structure: StructuredOutput, max_tokens: int, is_refused: bool
) -> None:
    async def scenario() -> None:
        async with make_engine() as engine:
            asked = engine.generate("say", params(structure, max_tokens=max_tokens))
            if is_refused:
                with pytest.raises(RequestRejected, match=f"max_tokens, which is {max_tokens}"):
                    await asked
            else:
                result = await asked
                is_whole = result.text in ("yes", "nope")
                ends = FinishReason.STOP if is_whole else FinishReason.LENGTH
                assert result.finish_reason is ends

    run_virtual(scenario())


class FaultyBackend:
    """Compiles what it should not be asked for in its own way."""

    def __init__(self, backend: GrammarBackend, compiles: Callable[[], None]) -> None:
        self._backend = backend
        self._compiles = compiles

    def pieces(self) -> list[bytes]:
        return self._backend.pieces()

    def compile(self, structure: StructuredOutput) -> Matcher:
        if structure.text == "bad":
            self._compiles()
        return self._backend.compile(structure)


def faulty_grammars(compiles: Callable[[], None], **options: Any) -> StructuredGrammars:
    def make(tokens: str | TokenBytes, size: int, eos: Collection[int]) -> GrammarBackend:
        return FaultyBackend(make_llguidance(tokens, size, eos), compiles)

    tokenizer = ToyTokenizer()
    return StructuredGrammars(
        tokenizer,
        vocab_size=tokenizer.vocab_size,
        eos_token_ids=tokenizer.eos_token_ids,
        make_backend=make,
        **options,
    )


@virtual
async def test_a_fault_while_compiling_refuses_that_request_and_the_queue_moves_on() -> None:
    """Field case 071."""

    def fail() -> None:
        raise ZeroDivisionError("deep inside")

    async with make_engine(grammars=faulty_grammars(fail, offload=inline)) as engine:
        bad = engine.generate("say", params(StructuredOutput.regex("bad")))
        good = engine.generate("say", params(STRUCTURES["choice"]))
        refusal, answer = await asyncio.gather(bad, good, return_exceptions=True)

    assert isinstance(refusal, RequestRejected)
    assert "cannot be compiled: deep inside" in str(refusal)
    assert not isinstance(answer, BaseException)
    assert IS_RIGHT["choice"](answer.text)


async def test_what_takes_too_long_to_compile_is_refused_and_holds_up_nobody() -> None:
    """Field case 073, on threads: who asks again later finds what came of it."""
    is_let_go = threading.Event()
    grammars = faulty_grammars(
        lambda: (is_let_go.wait(30), None)[1], offload=offload_to_thread, compile_s=0.05
    )
    bad = StructuredOutput.regex("bad")
    try:
        with pytest.raises(RequestRejected, match=r"takes longer to compile than 0\.05 s"):
            await grammars.prepare(bad, 10)
        grammars._compile_s = 30  # for others, however busy the machine
        await grammars.prepare(STRUCTURES["choice"], 10)
    finally:
        is_let_go.set()
    await grammars.prepare(bad, 10)


@virtual
async def test_a_request_that_leaves_its_grammar_no_token_fails_alone() -> None:
    async with make_engine() as engine:
        bad = engine.generate(
            "say", params(StructuredOutput.choice(["x"]), min_tokens=4, stop_token_ids=[120])
        )
        failure, good = await asyncio.gather(
            bad, engine.generate("say", params(None)), return_exceptions=True
        )

    assert isinstance(failure, RequestFailed)
    assert not isinstance(good, BaseException)
