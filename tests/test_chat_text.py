"""Answers told apart: reasoning, calls of tools and text, however the text is cut."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepahead import ReasoningDelta, SamplingParams, TextDelta, ToolCallDelta
from stepahead.actors.text.chat_text import ChatText
from stepahead.actors.text.gguf_tokenizer import make_gguf_tokenizer
from stepahead.actors.text.tokenizer import Tokenizer
from stepahead.messages import AnswerPart, ChatFormat, joined_parts

from .chat_vocabularies import byte_tokenizer
from .text_samples import sentencepiece_metadata

THINK, CALL = ("<think>", "</think>"), ("<tool_call>", "</tool_call>")
MISTRAL, PYTHON = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"), ("<|python_tag|>",)
MARKERS = (*THINK, *CALL, *MISTRAL, *PYTHON)
VOCABULARIES: dict[str, Tokenizer] = {
    "tokens that are shown": byte_tokenizer(shown=MARKERS),
    "special tokens": byte_tokenizer(hidden=MARKERS),
    "no tokens": byte_tokenizer(),
    "sentencepiece": make_gguf_tokenizer(sentencepiece_metadata("gemma2")),
}
every_vocabulary = pytest.mark.parametrize("vocabulary", VOCABULARIES)
bounded = settings(max_examples=25, derandomize=True, deadline=None)

Said = list[tuple[str, ...]]
"""What is left of parts without their sources and ids, neighbours of one kind joined."""


def said(parts: Sequence[AnswerPart]) -> Said:
    told: Said = []
    for part in joined_parts(parts):
        if isinstance(part, ToolCallDelta):
            told.append((part.type, part.name, part.arguments))
        elif part.text:
            told.append((part.type, part.text))
    return told


def parts_of(
    ids: Sequence[int],
    chat: ChatFormat,
    tokenizer: Tokenizer,
    *,
    sizes: Sequence[int] = (1,),
    **params: Any,
) -> tuple[list[AnswerPart], str, ChatText]:
    """Drive an answer: its parts, its text, and the driven one."""
    sampling = SamplingParams(**params)
    output = ChatText(tokenizer, sampling, chat, "answer")
    text, rest, turn = "", list(ids), 0
    parts: list[AnswerPart] = []
    while rest and output.matched is None:
        size = sizes[turn % len(sizes)]
        taken, rest, turn = rest[:size], rest[size:], turn + 1
        text += output.take(taken)[0]
        parts += output.take_parts()
    if output.matched is None:
        text += output.finish()
        parts += output.take_parts()
    assert "".join(part.source for part in parts) == text
    return parts, text, output


def told(text: str, chat: ChatFormat, vocabulary: str = "tokens that are shown") -> Said:
    tokenizer = VOCABULARIES[vocabulary]
    return said(parts_of(tokenizer.encode(text), chat, tokenizer)[0])


QWEN, LLAMA = ChatFormat("think", "hermes"), ChatFormat(None, "llama3_json")
MIXTRAL = ChatFormat(None, "mistral")
OPENED = ChatFormat("think", "hermes", "<think>\n")
WEATHER = '{"name": "weather", "arguments": {"city": "Zürich"}}'
WEATHER_OF_LLAMA = '{"name": "weather", "parameters": {"city": "Zürich"}}'
CALLED = ("tool_call", "weather", '{"city": "Zürich"}')
TIME = ("tool_call", "time", "{}")

ANSWERS: list[tuple[str, ChatFormat, Said]] = [
    ("Hello.", QWEN, [("text", "Hello.")]),
    ("Hello.", ChatFormat(), [("text", "Hello.")]),
    ("<think>x</think>y", ChatFormat(), [("text", "<think>x</think>y")]),
    ("<think>\nHm \n</think>\n\nYes.", QWEN, [("reasoning", "Hm"), ("text", "Yes.")]),
    ("Hm </think>\n\nYes.\n", OPENED, [("reasoning", "Hm"), ("text", "Yes.\n")]),
    ("<think>Hm</think>Yes.", OPENED, [("reasoning", "Hm"), ("text", "Yes.")]),
    ("<think></think>Yes.", QWEN, [("text", "Yes.")]),
    ("<think>only thought ", QWEN, [("reasoning", "only thought ")]),
    ("a </think> b", QWEN, [("text", "a </think> b")]),
    (f"<tool_call>\n{WEATHER}\n</tool_call>", QWEN, [CALLED]),
    (f"So: <tool_call>{WEATHER}</tool_call>", QWEN, [("text", "So: "), CALLED]),
    (
        f"<think>Hm</think>\n\n<tool_call>\n{WEATHER}\n</tool_call>\n"
        '<tool_call>\n{"name": "time"}\n</tool_call>',
        QWEN,
        [("reasoning", "Hm"), CALLED, TIME],
    ),
    (f"<think><tool_call>{WEATHER}</think>", QWEN, [("reasoning", f"<tool_call>{WEATHER}")]),
    (f"<tool_call>{WEATHER}", QWEN, [CALLED]),  # the end of the answer ends a call, too
    (f"<tool_call>{WEATHER[:-3]}", QWEN, [("text", f"<tool_call>{WEATHER[:-3]}")]),
    (f"<tool_call>{WEATHER}}} \n</tool_call>", QWEN, [CALLED, ("text", "} \n</tool_call>")]),
    (f"<tool_call>{WEATHER} \nand", QWEN, [CALLED, ("text", "and")]),
    ("<tool_call>{oops}</tool_call>!", QWEN, [("text", "<tool_call>{oops}</tool_call>!")]),
    ("<tool_call>f(x)</tool_call>", QWEN, [("text", "<tool_call>f(x)</tool_call>")]),
    ("<tool_call>[]</tool_call>", QWEN, [("text", "<tool_call>[]</tool_call>")]),
    (
        f"<tool_call>{{oops}}<tool_call>{WEATHER}</tool_call>",
        QWEN,
        [("text", "<tool_call>{oops}"), CALLED],
    ),
    ('<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', QWEN, []),
    ('<tool_call>{"name": 7}</tool_call>', QWEN, []),
    ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', QWEN, []),
    (
        '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>',
        QWEN,
        [("tool_call", "f", '{"x": 1}')],
    ),
    (
        '<tool_call>{"name": "f", "arguments": {"x": "<think>"}}</tool_call>',
        QWEN,
        [("tool_call", "f", '{"x": "<think>"}')],
    ),
    (f"<tool_call>{'[' * 5_000}</tool_call>", QWEN, []),
    (WEATHER_OF_LLAMA, LLAMA, [CALLED]),
    (f"<|python_tag|>{WEATHER_OF_LLAMA}", LLAMA, [CALLED]),
    (f"{WEATHER_OF_LLAMA}; {WEATHER_OF_LLAMA}", LLAMA, [CALLED, CALLED]),
    (f"Like {WEATHER_OF_LLAMA}", LLAMA, [("text", f"Like {WEATHER_OF_LLAMA}")]),
    ('{"city": "Zürich"} is JSON', LLAMA, [("text", '{"city": "Zürich"} is JSON')]),
    ("<|python_tag|>print(1)", LLAMA, [("text", "<|python_tag|>print(1)")]),
    (f"[TOOL_CALLS][{WEATHER}]", MIXTRAL, [CALLED]),
    (f'[TOOL_CALLS] [{WEATHER}, {{"name": "time"}}] ok', MIXTRAL, [CALLED, TIME, ("text", " ok")]),
    ('[TOOL_CALLS]weather[ARGS]{"city": "Zürich"}', MIXTRAL, [CALLED]),
    (
        '[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Zürich"}[TOOL_CALLS]time[ARGS]{}',
        MIXTRAL,
        [CALLED, TIME],
    ),
    ("[TOOL_CALLS]what is that?", MIXTRAL, [("text", "[TOOL_CALLS]what is that?")]),
]


@every_vocabulary
@pytest.mark.parametrize(("text", "chat", "expected"), ANSWERS, ids=range(len(ANSWERS)))
def test_answers_are_told_apart(
    text: str, chat: ChatFormat, expected: Said, vocabulary: str
) -> None:
    """An expectation of nothing stands for: all of it is text."""
    expected = expected or [("text", text)]
    if vocabulary == "special tokens":
        expected = [
            part if part[0] == "tool_call" else (part[0], without_markers(part[1]))
            for part in expected
        ]

    assert told(text, chat, vocabulary) == expected


def without_markers(text: str) -> str:
    for marker in MARKERS:
        text = text.replace(marker, "")
    return text


@bounded
@given(
    data=st.data(),
    begun=st.sampled_from(("", "<think>", "<think>a ", "So ", "<tool_call>{", '{"name": "')),
    skip=st.booleans(),
)
@every_vocabulary
@pytest.mark.parametrize("tools", ["hermes", "llama3_json", "mistral", None])
def test_the_parts_join_to_the_text_of_any_ids(
    vocabulary: str, tools: str | None, data: st.DataObject, begun: str, skip: bool
) -> None:
    tokenizer = VOCABULARIES[vocabulary]
    snippets = [*MARKERS, WEATHER, WEATHER_OF_LLAMA, f"[{WEATHER}]", "{", "é", " ", "\n", "a", '"']
    texts = st.lists(st.sampled_from(snippets), max_size=12).map("".join).map(tokenizer.encode)
    anything = st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=30)
    ids = data.draw(texts | anything)
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    chat = ChatFormat("think", tools, begun)

    parts, text, _ = parts_of(ids, chat, tokenizer, sizes=sizes, skip_special_tokens=skip)

    assert said(parts) == said(parts_of(ids, chat, tokenizer, skip_special_tokens=skip)[0])
    for part in parts:
        assert not isinstance(part, ToolCallDelta) or isinstance(json.loads(part.arguments), dict)
    if vocabulary != "special tokens":
        assert text == tokenizer.decode(ids, skip_special_tokens=skip)


def stopped(text: str, *, chat: ChatFormat = QWEN, **params: Any) -> tuple[Said, str | None]:
    tokenizer = VOCABULARIES["tokens that are shown"]
    parts, _, output = parts_of(tokenizer.encode(text), chat, tokenizer, **params)
    return said(parts), output.matched


def test_a_stop_string_in_the_reasoning_does_not_end_the_answer() -> None:
    """Field case 032: what the user does not see is not searched."""
    assert stopped("<think>END</think>\n\nYes. END no", stop="END") == (
        [("reasoning", "END"), ("text", "Yes. ")],
        "END",
    )


@pytest.mark.parametrize("stop", ["\n", "weather", "}", "<tool_call>"])
def test_markers_the_space_next_to_them_and_calls_hold_no_stop_string(stop: str) -> None:
    text = f"<think>\nHm\n</think>\n\nSo:<tool_call>\n{WEATHER}\n</tool_call>\n"

    parts, matched = stopped(text, stop=stop)

    assert (parts, matched) == ([("reasoning", "Hm"), ("text", "So:"), CALLED], None)


def test_text_held_back_for_a_stop_string_comes_before_a_call() -> None:
    text = f"see <tool_call>{WEATHER}</tool_call>"

    assert stopped(text, stop=" END") == ([("text", "see "), CALLED], None)


def test_what_turns_out_to_be_no_call_may_hold_a_stop_string() -> None:
    text = "<tool_call>{oops END}</tool_call>"

    assert stopped(text, stop="END") == ([("text", "<tool_call>{oops ")], "END")


def test_the_stop_string_of_a_chat_can_be_kept() -> None:
    parts, matched = stopped("a END b", stop="END", include_stop_str_in_output=True)

    assert (parts, matched) == ([("text", "a END")], "END")


def test_stop_strings_of_a_chat_count_only_after_the_least_number_of_tokens() -> None:
    assert stopped("----", stop="--", min_tokens=2, max_tokens=9) == ([("text", "--")], "--")


def test_the_ids_of_calls_suit_templates_and_differ() -> None:
    text = f"<tool_call>{WEATHER}</tool_call>" * 3
    own = '[TOOL_CALLS][{"name": "f", "id": "abc123def"}, {"name": "f", "id": "abc123def"}]'
    tokenizer = VOCABULARIES["tokens that are shown"]

    made = _call_ids(parts_of(tokenizer.encode(text), QWEN, tokenizer)[0])
    given = _call_ids(parts_of(tokenizer.encode(own), MIXTRAL, tokenizer)[0])

    assert len(set(made)) == 3
    assert all(len(call_id) == 9 and call_id.isalnum() for call_id in made)
    assert given[0] == "abc123def" != given[1]


def _call_ids(parts: Sequence[AnswerPart]) -> list[str]:
    return [part.call_id for part in parts if isinstance(part, ToolCallDelta)]


def test_a_call_comes_at_once_and_text_as_it_is_written() -> None:
    tokenizer = VOCABULARIES["no tokens"]
    text = f"Yes.<tool_call>{WEATHER}</tool_call>"
    output = ChatText(tokenizer, SamplingParams(), QWEN, "answer")

    shown = [output.take([token_id])[0] for token_id in tokenizer.encode(text)]

    assert [piece for piece in shown if piece] == [*"Yes.", f"<tool_call>{WEATHER}</tool_call>"]
    assert shown[-1] != ""


def test_letters_that_spell_a_marker_with_its_own_token_are_text() -> None:
    tokenizer = VOCABULARIES["tokens that are shown"]
    spelled = [i for c in "<think>Hm</think>" for i in tokenizer.encode(c)]

    assert said(parts_of(spelled, QWEN, tokenizer)[0]) == [("text", "<think>Hm</think>")]


def test_neighbours_of_one_kind_join_and_calls_stay_apart() -> None:
    call = ToolCallDelta("id", "f", "{}", "c")
    text, reasoning = TextDelta("a", "a"), ReasoningDelta("", "<think>")

    assert joined_parts([reasoning, reasoning, text, text, call, call]) == (
        ReasoningDelta("", "<think><think>"),
        TextDelta("aa", "aa"),
        call,
        call,
    )
