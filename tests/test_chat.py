"""Chats through the whole engine: typed parts, formats, continued messages, ids without drift."""

from typing import Any

import pytest

from stepahead import (
    FinishReason,
    ReasoningDelta,
    RequestRejected,
    Result,
    SamplingParams,
    TextDelta,
    ToolCallDelta,
)
from stepahead.actors.text.answer_formats import (
    begun_in,
    reasoning_format_of,
    tool_format_of,
)
from stepahead.actors.text.conversation import checked_messages
from stepahead.messages import ChatFormat

from .chat_vocabularies import END, byte_tokenizer
from .engines import make_engine, virtual
from .scripted import scripted_engine

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if tools %}{{ tools | tojson }} in <tool_call></tool_call>{% endif %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking %}{{ '<think>\n' }}{% endif %}{% endif %}"
)
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_start|>")
QWEN = byte_tokenizer(shown=MARKERS, template=CHATML)
ASK = [{"role": "user", "content": "Weather?"}]
TOOL = {"name": "weather", "description": "…", "parameters": {"type": "object"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
ANSWER = f"<think>\nHm\n</think>\n\nLet me see.{CALL}"
ROOMY: dict[str, Any] = {"max_model_len": 1024, "num_blocks": 512}


async def chatted(answer: str, params: SamplingParams, **chat: Any) -> tuple[Result, list[Any]]:
    """What comes of an answer to ASK: the result, and the parts as they streamed."""
    prompt = QWEN.encode_chat(ASK, tools=chat.get("tools"), options=chat.get("template_options"))[0]
    async with scripted_engine(QWEN, [(prompt, QWEN.encode(answer))], **ROOMY) as engine:
        result = await engine.chat(ASK, params, **chat)
        deltas = [delta async for delta in engine.stream_chat(ASK, params, **chat)]
    for delta in deltas:
        assert "".join(part.source for part in delta.parts) == delta.text
    for output in result.outputs:
        own = [delta.text for delta in deltas if delta.index == output.index]
        assert "".join(own) == output.text
    return result, [part for delta in deltas for part in delta.parts]


@virtual
async def test_an_answer_comes_in_typed_parts_and_the_result_has_them_too() -> None:
    result, parts = await chatted(ANSWER, SamplingParams(), tools=[TOOL])

    assert result.text == ANSWER
    assert result.reasoning == "Hm"
    assert result.content == "Let me see."
    (call,) = result.tool_calls
    assert (call.name, call.arguments) == ("weather", '{"city": "Bern"}')
    assert [type(part) for part in result.outputs[0].parts] == [
        ReasoningDelta,
        TextDelta,
        ToolCallDelta,
    ]
    assert [part.name for part in parts if isinstance(part, ToolCallDelta)] == ["weather"]
    assert result.finish_reason is FinishReason.STOP
    assert result.usage.completion_tokens == len(QWEN.encode(ANSWER)) + 1  # and the EOS
    assert result.message == {
        "role": "assistant",
        "content": "Let me see.",
        "reasoning_content": "Hm",
        "tool_calls": [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Bern"}'},
            }
        ],
    }
    assert checked_messages([result.message])


@virtual
async def test_each_of_several_answers_has_parts_and_ids_of_its_own() -> None:
    result, _ = await chatted(ANSWER, SamplingParams(n=2), tools=[TOOL])

    first, second = (output.tool_calls[0] for output in result.outputs)
    assert first.arguments == second.arguments
    assert first.call_id != second.call_id
    assert [output.content for output in result.outputs] == ["Let me see."] * 2


@virtual
async def test_calls_are_looked_for_only_where_there_are_tools() -> None:
    result, _ = await chatted(CALL, SamplingParams())

    assert (result.content, result.tool_calls) == (CALL, ())


@virtual
async def test_formats_can_be_named_and_turned_off() -> None:
    named, _ = await chatted(CALL, SamplingParams(), tool_format="hermes")
    off, _ = await chatted(
        ANSWER, SamplingParams(), tools=[TOOL], reasoning_format="none", tool_format="none"
    )

    assert [call.name for call in named.tool_calls] == ["weather"]
    assert (off.content, off.reasoning, off.tool_calls) == (ANSWER, "", ())


@virtual
async def test_a_template_may_open_the_reasoning_in_the_prompt() -> None:
    result, _ = await chatted(
        "Hm\n</think>\n\nYes.", SamplingParams(), template_options={"enable_thinking": True}
    )

    assert (result.reasoning, result.content) == ("Hm", "Yes.")


@virtual
async def test_a_call_that_the_prompt_has_begun_is_completed() -> None:
    begun = '<tool_call>\n{"name": "weather", "arguments": {"city": "'
    messages = [*ASK, {"role": "assistant", "content": begun}]
    chat: dict[str, Any] = {"continue_final_message": True, "tools": [TOOL]}
    prompt = QWEN.encode_chat(messages, **chat)[0]
    answer = 'Bern"}}\n</tool_call>'
    async with scripted_engine(QWEN, [(prompt, QWEN.encode(answer))], **ROOMY) as engine:
        result = await engine.chat(messages, **chat)

    (call,) = result.tool_calls
    assert (call.name, call.arguments) == ("weather", '{"city": "Bern"}')
    assert (call.source, result.content) == (answer, "")


@virtual
async def test_an_answer_that_is_cut_off_says_so_and_loses_nothing() -> None:
    result, _ = await chatted(CALL, SamplingParams(max_tokens=20), tools=[TOOL])

    assert result.finish_reason is FinishReason.LENGTH
    assert result.content == result.text == QWEN.decode(QWEN.encode(CALL)[:20])
    assert result.usage.completion_tokens == 20


@virtual
async def test_a_stop_string_in_the_reasoning_leaves_the_answer_alone() -> None:
    """Field case 032."""
    result, _ = await chatted(ANSWER, SamplingParams(stop=("Hm", "see")))

    assert (result.content, result.stop_reason) == ("Let me ", "see")


@virtual
async def test_a_prompt_has_no_parts() -> None:
    async with make_engine() as engine:
        result = await engine.generate("hello", SamplingParams(max_tokens=5))

    assert result.outputs[0].parts == ()
    assert (result.content, result.reasoning, result.tool_calls) == (result.text, "", ())


@virtual
async def test_ids_go_in_and_out_unchanged_and_find_their_prefix() -> None:
    """A second turn made of the first one's ids is the same ids, so its blocks are found."""
    next_turn = f"{END}\n<|im_start|>user\nAnd tomorrow?{END}\n<|im_start|>assistant\n"
    prompt = QWEN.encode_chat(ASK)[0]
    answer = QWEN.encode("Wet€")[:-1]  # half a character: its text does not lead back to it
    async with scripted_engine(QWEN, [(prompt, answer)], **ROOMY) as engine:
        ids = await engine.tokenize(ASK)
        first = await engine.chat(ASK, SamplingParams())
        rest = await engine.tokenize(next_turn, add_special_tokens=False)
        second = await engine.generate([*ids, *first.token_ids[:-1], *rest], SamplingParams())
        text = await engine.detokenize(first.token_ids)

    assert ids == prompt
    assert list(first.token_ids) == [*answer, *QWEN.eos_token_ids]
    whole_blocks = (len(ids) + len(answer)) // 4 * 4
    assert second.usage.cached_tokens == whole_blocks
    assert text == first.text == "Wet\ufffd"


@virtual
async def test_tokenising_is_what_the_engine_does_itself() -> None:
    async with scripted_engine(QWEN, [], **ROOMY) as engine:
        assert await engine.tokenize("") == []
        assert await engine.tokenize("añ") == QWEN.encode("añ")
        assert await engine.tokenize("x" * 5_000) == QWEN.encode("x" * 5_000)  # beyond the context
        assert await engine.detokenize([]) == ""
        assert await engine.detokenize(QWEN.encode(f"a{END}")) == "a"
        shown = await engine.detokenize(QWEN.encode(f"a{END}"), skip_special_tokens=False)
        assert shown == f"a{END}"
        assert await engine.detokenize([-1, 10**9]) == ""
        with pytest.raises(RequestRejected, match="token_ids is 'text'"):
            await engine.detokenize("text")  # type: ignore[arg-type]  # what a careless caller passes


@pytest.mark.parametrize(
    ("chat", "fault"),
    [
        ({"tools": "weather"}, "tools is 'weather'"),
        ({"tools": [{"description": "?"}]}, "tool 1 is .*it must be a function"),
        ({"tools": [TOOL, 7]}, "tool 2 is 7"),
        ({"tool_format": "xml"}, "tool_format is 'xml'; it must be one of auto, none, hermes"),
        ({"reasoning_format": 1}, "reasoning_format is 1"),
        ({"template_options": [1]}, r"template_options is \[1\]"),
        ({"continue_final_message": "yes"}, "continue_final_message is 'yes'"),
    ],
)
def test_chat_options_that_make_no_sense_are_refused_by_name(
    chat: dict[str, Any], fault: str
) -> None:
    @virtual
    async def scenario() -> None:
        async with scripted_engine(QWEN, [], **ROOMY) as engine:
            with pytest.raises(RequestRejected, match=fault):
                await engine.chat(ASK, **chat)

    scenario()


# Which format a model uses


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("For each call return <tool_call>\n{...}\n</tool_call>", "hermes"),
        ("<tool_call>\n<function=name>\n", None),  # its calls are XML
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
        ("<|start_header_id|> {{ '\"parameters\": ' }}", "llama3_json"),
        ("<|im_start|>", None),
        ("", None),
    ],
)
def test_the_template_tells_how_tools_are_called(template: str, expected: str | None) -> None:
    assert tool_format_of(template) == expected


def test_the_template_or_the_vocabulary_tells_about_reasoning() -> None:
    assert reasoning_format_of("{{ content.split('</think>')[-1] }}", {}) == "think"
    assert reasoning_format_of("", {"<think>": 1, "</think>": 2}) == "think"
    assert reasoning_format_of("", {"<think>": 1}) is None
    assert QWEN.chat_format == ChatFormat("think", "hermes")


@pytest.mark.parametrize(
    ("prompt", "continued", "expected"),
    [
        ("assistant\n<think>\n", "", "<think>"),
        ("assistant\n<think>\n\n</think>\n\n", "", ""),
        ("assistant\n", "", ""),
        ("assistant\n<think>Hm", "<think>Hm", "<think>Hm"),
        ("assistant\n<think>Hm", "Hm", "<think>Hm"),
        ("user\n<think>assistant\nb", "b", "b"),
    ],
)
def test_a_prompt_tells_what_the_model_has_said_already(
    prompt: str, continued: str, expected: str
) -> None:
    assert begun_in(prompt, continued) == expected
