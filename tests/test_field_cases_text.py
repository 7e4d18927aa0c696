"""Faults met in other engines, each as a small request to a scripted model: field cases A, B, J."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from stepahead import Delta, FinishReason, RequestRejected, SamplingParams
from stepahead.actors.text.gguf_tokenizer import make_gguf_tokenizer
from stepahead.actors.text.token_texts import TokenTexts
from stepahead.actors.text.tokenizer import Tokenizer
from stepahead.actors.text.toy import ToyTokenizer
from stepahead.actors.virtual_time import run_virtual

from .chat_vocabularies import END, byte_tokenizer
from .engines import is_empty, settle
from .scripted import scripted_engine
from .text_samples import sentencepiece_metadata

BYTES = byte_tokenizer(shown=("<think>", "</think>"), hidden=("<s>", "<mark>"))
PIECES = make_gguf_tokenizer(sentencepiece_metadata())
TOY = ToyTokenizer()
(EOS,) = BYTES.eos_token_ids
MARK = BYTES.added_tokens["<mark>"]


def half(text: str) -> list[int]:
    """The ids of a text without its last byte."""
    return BYTES.encode(text)[:-1]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A request, what the model says, and what is to come of it."""

    says: Sequence[int] | str
    text: str
    params: Mapping[str, Any] = field(default_factory=dict)
    reason: FinishReason = FinishReason.STOP
    stop_reason: int | str | None = None
    prompt: Sequence[int] | str = "Go"
    tokenizer: Tokenizer = BYTES
    num_tokens: int | None = None  # sampled; None: all that the model says, and an EOS
    deltas: Sequence[str] | None = None  # where it matters what comes when


CASES: Mapping[str, Case] = {
    "001 the prompt ends in half a character": Case(
        prompt=half("a€"), says=[BYTES.encode("€")[-1], *BYTES.encode("ok")], text="\ufffdok"
    ),
    "002 a character is broken off by a space": Case(
        says=[*half("€"), *BYTES.encode(" a b")], text="\ufffd a b"
    ),
    "004 the limit cuts a character": Case(
        says="ab€",
        text="ab\ufffd",
        params={"max_tokens": 4},
        reason=FinishReason.LENGTH,
        num_tokens=4,
        deltas=["a", "b", "", "\ufffd"],
    ),
    "005 a leading space stays": Case(says=" hi", text=" hi"),
    "005 a leading space stays as the pieces' own decode has it": Case(
        says=[i for i in PIECES.encode("  hi") if i != 1], text=" hi", prompt=[5], tokenizer=PIECES
    ),
    "007 a run of spaces keeps its length": Case(says="a    b", text="a    b"),
    "007 also in pieces": Case(
        says=[i for i in PIECES.encode("a    b") if i != 1],
        text="a    b",
        prompt=[5],
        tokenizer=PIECES,
    ),
    "008 nothing is put around shown special tokens": Case(
        says="<mark>a<mark>b", text="<mark>a<mark>b", params={"skip_special_tokens": False}
    ),
    "010 a long stop string delays nothing": Case(
        says="hello", text="hello", params={"stop": "x" * 30}, deltas=["h", "e", "l", "l", "o", ""]
    ),
    "014 no piece of a stop string is shown": Case(
        says="ABCDEF",
        text="AB",
        params={"stop": "CDEF"},
        stop_reason="CDEF",
        num_tokens=6,
        deltas=["A", "B", "", "", "", ""],
    ),
    "016 a stop id that is not shown cuts no text": Case(
        says="abc<mark>",
        text="abc",
        params={"stop_token_ids": (MARK,)},
        stop_reason=MARK,
        num_tokens=4,
    ),
    "017 text before the match is shown": Case(
        says="sky on Mars?\n",
        text="sky on Mars?",
        params={"stop": "\n"},
        stop_reason="\n",
        num_tokens=13,
    ),
    "019 what was held back is shown at an EOS": Case(
        says="UNO DUE TRE", text="UNO DUE TRE", params={"stop": " TRE\n"}
    ),
    "019 and at the limit": Case(
        says="UNO DUE TRE!",
        text="UNO DUE TRE",
        params={"stop": " TRE\n", "max_tokens": 11},
        reason=FinishReason.LENGTH,
        num_tokens=11,
    ),
    "020 a stop string of many tokens is seen": Case(
        says="NO P QR", text="N", params={"stop": "O P Q"}, stop_reason="O P Q", num_tokens=6
    ),
    "022 a stop string wins over the EOS behind it": Case(
        says="a END", text="a ", params={"stop": "END"}, stop_reason="END", num_tokens=5
    ),
    "023 an EOS as the last token is a stop": Case(says="ab", text="ab", params={"max_tokens": 3}),
    "026 which of two fired is told, and it can be kept": Case(
        says="ab two",
        text="ab two",
        params={"stop": ("one", "two"), "include_stop_str_in_output": True},
        stop_reason="two",
        num_tokens=6,
    ),
    "031 every sampled id counts, the EOS too": Case(says="abc", text="abc", num_tokens=4),
    "min_tokens: stop strings count behind it": Case(
        says="x.y.z",
        text="x.y",
        params={"stop": ".", "min_tokens": 2},
        stop_reason=".",
        num_tokens=4,
    ),
    "min_tokens: a stop string may not begin before it": Case(
        says="<<>>", text="<<>>", params={"stop": "<>", "min_tokens": 2}
    ),
    "min_tokens: the EOS comes after it": Case(says="abc", text="abc", params={"min_tokens": 3}),
    "ids alone have no text": Case(
        says="abc", text="", params={"detokenize": False, "stop_token_ids": (MARK,)}
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("steps_in_flight", [1, 3])
def test_what_other_engines_got_wrong(name: str, steps_in_flight: int) -> None:
    case = CASES[name]
    run_virtual(check(case, steps_in_flight))


async def check(case: Case, steps_in_flight: int) -> None:
    prompt, says = (
        case.tokenizer.encode(ids) if isinstance(ids, str) else list(ids)
        for ids in (case.prompt, case.says)
    )
    params = SamplingParams(**case.params)
    async with scripted_engine(
        case.tokenizer, [(prompt, says)], steps_in_flight=steps_in_flight
    ) as engine:
        result = await engine.generate(prompt, params)
        deltas = [delta async for delta in engine.stream(prompt, params)]
        await settle(engine, steps_in_flight + 1)  # so many steps late at most
        assert is_empty(engine)

    said = [*says, *case.tokenizer.eos_token_ids]
    num_tokens = len(said) if case.num_tokens is None else case.num_tokens
    assert result.text == "".join(delta.text for delta in deltas) == case.text
    assert (result.finish_reason, result.stop_reason) == (case.reason, case.stop_reason)
    assert list(result.token_ids) == said[:num_tokens] == ids_of(deltas)
    assert result.usage.completion_tokens == num_tokens
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.completion_tokens == num_tokens
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    if case.deltas is not None:
        assert [delta.text for delta in deltas] == case.deltas


def ids_of(deltas: Sequence[Delta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


# Tokens by themselves

KANJI = make_gguf_tokenizer(sentencepiece_metadata("gemma2"))


def spelled(token: str) -> int:
    tokens = sentencepiece_metadata()["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    return tokens.index(token)


@pytest.mark.parametrize(
    ("tokenizer", "token_id", "text", "piece"),
    [
        (BYTES, BYTES.encode("€")[0], "\ufffd", b"\xe2"),  # 011: a piece of a character
        (BYTES, BYTES.encode("a")[0], "a", b"a"),
        (BYTES, MARK, "<mark>", b"<mark>"),
        (PIECES, 3 + 0xE2, "\ufffd", b"\xe2"),
        (PIECES, spelled("\u2581\u2581"), "  ", b"  "),
        (PIECES, spelled("日本"), "日本", "日本".encode()),  # 013: no mojibake
        (KANJI, spelled("日本"), "日本", "日本".encode()),
        (TOY, *b"a", "a", b"a"),
    ],
)
def test_a_token_is_told_by_itself(
    tokenizer: Tokenizer, token_id: int, text: str, piece: bytes
) -> None:
    """Field cases 011 and 013: also as if nothing stood before it, which keeps a leading space."""
    assert TokenTexts(tokenizer).of(token_id) == (text, piece)


# Refused by name, alone


@pytest.mark.parametrize(
    ("params", "fault"),
    [
        ({"stop": "x", "detokenize": False}, "stop is .*detokenize is False"),  # 025
        (
            {"stop_token_ids": (BYTES.vocab_size + 7,), "min_tokens": 1},
            "stop_token_ids holds",
        ),  # 028
    ],
)
def test_what_cannot_be_meant_fails_its_own_request_only(
    params: Mapping[str, Any], fault: str
) -> None:
    """Field cases 025 and 028."""

    async def scenario() -> None:
        prompt = BYTES.encode("Go")
        async with scripted_engine(BYTES, [(prompt, BYTES.encode("fine"))]) as engine:
            neighbour = engine.stream(prompt)
            first = await anext(neighbour)
            with pytest.raises(RequestRejected, match=fault):
                await engine.generate(prompt, SamplingParams(**params))
            assert first.text + (await neighbour.result()).text == "fine"

    run_virtual(scenario())


@pytest.mark.parametrize("ends_with", [EOS, MARK])
def test_the_ends_of_tokenizer_and_configuration_both_count(ends_with: int) -> None:
    """Field case 029."""

    async def scenario() -> None:
        prompt, says = BYTES.encode("Go"), [*BYTES.encode("ab"), ends_with, *BYTES.encode("cd")]
        async with scripted_engine(BYTES, [(prompt, says)], eos_of_model={MARK}) as engine:
            result = await engine.generate(prompt)
        assert (result.text, result.finish_reason) == ("ab", FinishReason.STOP)
        assert result.stop_reason is None

    run_virtual(scenario())


# Chat templates

CHATML = (
    "{{ '<s>' }}{% for message in messages %}"
    "{{ '<' + message.role + '>' + message.content | trim }}"
    "{% if message.tool_calls is defined %}"
    "{{ message.tool_calls | map(attribute='function.arguments') | map('tojson') | join }}"
    "{% endif %}{{ '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
CHATTY = byte_tokenizer(hidden=("<s>",), template=CHATML, adds_bos=True)
USER = {"role": "user", "content": "Hi"}
BEGUN = {"role": "assistant", "content": "Paris is "}


def calling(arguments: object) -> dict[str, object]:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


CHATS: Mapping[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "122 exactly one BOS": ([USER], {}, f"<s><user>Hi{END}<assistant>"),
    "124 the space before the join stays": (
        [USER, BEGUN],
        {"continue_final_message": True},
        f"<s><user>Hi{END}<assistant>Paris is ",
    ),
    "125 no end of turn behind what is continued": (
        [USER, {**BEGUN, "content": "Paris"}],
        {"continue_final_message": True},
        f"<s><user>Hi{END}<assistant>Paris",
    ),
    "127 no tool calls are none": (
        [{"role": "assistant", "content": "hi", "tool_calls": []}],
        {},
        f"<s><assistant>hi{END}<assistant>",
    ),
    "128 null arguments are an empty object": (
        [calling("null")],
        {},
        f"<s><assistant>{{}}{END}<assistant>",
    ),
    "130 an empty text is a message": (
        [{"role": "user", "content": ""}],
        {},
        f"<s><user>{END}<assistant>",
    ),
}


@pytest.mark.parametrize("name", CHATS)
def test_what_templates_of_other_engines_got_wrong(name: str) -> None:
    messages, chat, expected = CHATS[name]

    async def scenario() -> None:
        async with scripted_engine(CHATTY, []) as engine:
            ids = await engine.tokenize(messages, **chat)
            assert await engine.detokenize(ids, skip_special_tokens=False) == expected
            assert (await engine.chat(messages, **chat)).usage.prompt_tokens == len(ids)

    run_virtual(scenario())


def test_a_raw_prompt_has_one_bos_too_and_no_messages_are_refused() -> None:
    """Field cases 122 and 130."""

    async def scenario() -> None:
        async with scripted_engine(CHATTY, []) as engine:
            once, twice = await engine.tokenize("Hi"), await engine.tokenize("<s>Hi")
            assert once == twice == [CHATTY.added_tokens["<s>"], *CHATTY.encode_rest("Hi")]
            with pytest.raises(RequestRejected, match="messages is empty"):
                await engine.chat([])

    run_virtual(scenario())
