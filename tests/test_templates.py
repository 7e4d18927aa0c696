"""Chat templates: what they are offered, what they refuse, and how a message is continued."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from stepahead import RequestRejected
from stepahead.actors.text.templates import JinjaTemplate
from stepahead.actors.text.toy import ToyTokenizer

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QUESTION = {"role": "user", "content": "Where?"}
HI = [{"role": "user", "content": "hi"}]


def render(source: str, messages: Sequence[Mapping[str, object]] = HI, **options: Any) -> str:
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    return JinjaTemplate(source, special).render(messages, **options)


def test_writes_every_turn_and_opens_the_next() -> None:
    assert render(CHATML) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}", "<s>hi</s>"),
        ("{{ pad_token }}{{ tools is none }}{{ documents is none }}", "TrueTrue"),
        ("{% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),  # blocks leave no blank lines
        ("{{ {'a': '<é&>'} | tojson }}", '{"a": "<é&>"}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        (
            "{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
            "02",
        ),
        ("{% generation %}a{{ 1 + 1 }}{% endgeneration %}b", "a2b"),
        ("{% set ns = namespace(n=1) %}{% set ns.n = 2 %}{{ ns.n }}", "2"),
        ("{{ strftime_now('%%') }}", "%"),
    ],
)
def test_templates_find_what_they_are_written_for(source: str, expected: str) -> None:
    assert render(source) == expected


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("{{ raise_exception('only users here') }}", "only users here"),
        ("{{ messages[0].absent.more }}", "absent"),
        ("{{ 1 / 0 }}", "division"),
        ("{% if %}", "chat template failed"),
        ("{{ messages.append(1) }}", "chat template failed"),
        ("{{ ''.__class__.__mro__ }}", "chat template failed"),
    ],
)
def test_a_template_that_fails_rejects_the_request(source: str, fault: str) -> None:
    with pytest.raises(RequestRejected, match=fault):
        render(source)


@pytest.mark.parametrize("text", ["Paris is", "Paris is ", "Paris is\n\n", ""])
def test_a_continued_message_ends_the_prompt_exactly_as_it_was_given(text: str) -> None:
    """Field cases 124 and 125: spaces at the end stay, and no end of turn follows."""
    messages = [QUESTION, {"role": "assistant", "content": text}]

    prompt = render(CHATML, messages, continue_final_message=True)

    opened = "<|im_start|>user\nWhere?<|im_end|>\n<|im_start|>assistant\n"
    assert prompt == opened + text


def test_a_message_the_template_does_not_show_cannot_be_continued() -> None:
    with pytest.raises(RequestRejected, match="cannot be continued"):
        render("nothing", continue_final_message=True)


def test_an_empty_list_of_tool_calls_is_as_good_as_none() -> None:
    """Field case 127."""
    message = {"role": "assistant", "content": "hi", "tool_calls": []}

    assert render("{{ messages[0].tool_calls is defined }}", [message]) == "False"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("null", "{}"),
        (None, "{}"),
        ('{"city": "Paris"}', '{"city": "Paris"}'),
        ({"city": "Paris"}, '{"city": "Paris"}'),
        ("not json", '"not json"'),
    ],
)
def test_tool_arguments_reach_the_template_as_an_object(arguments: object, expected: str) -> None:
    """Field case 128."""
    call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}

    source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"

    assert render(source, [message]) == expected


def test_text_in_parts_is_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "ab"


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "messages is empty"),
        ("hi", "messages is 'hi'"),
        ([{"content": "hi"}], "message 1 has the role None"),
        ([QUESTION, {"role": "", "content": "hi"}], "message 2 has the role ''"),
        ([{"role": "user"}], "message 1 has no content"),
        ([{"role": "user", "content": 7}], "message 1 has the content 7"),
        ([{"role": "user", "content": [{"type": "image"}]}], "reads text only"),
        (["hi"], "message 1 is 'hi'"),
        ([{"role": "assistant", "content": "", "tool_calls": "f"}], "tool_calls 'f'"),
    ],
)
def test_messages_that_make_no_sense_are_rejected(messages: list[object], fault: str) -> None:
    """Field case 130."""
    with pytest.raises(RequestRejected, match=fault):
        render(CHATML, messages)  # type: ignore[arg-type]  # what a careless caller passes


def test_an_empty_text_is_a_message() -> None:
    """Field case 130."""
    assert "user\n<|im_end|>" in render(CHATML, [{"role": "user", "content": ""}])


def test_the_callers_messages_are_left_as_they_are() -> None:
    messages = [{"role": "assistant", "content": "a", "tool_calls": []}]

    render(CHATML, messages, continue_final_message=True)

    assert messages == [{"role": "assistant", "content": "a", "tool_calls": []}]


def test_the_toy_has_a_chat_format_of_its_own() -> None:
    tokenizer = ToyTokenizer(add_bos=True)
    messages = [QUESTION, {"role": "assistant", "content": "So"}]

    closed = tokenizer.encode_chat(messages)[0]
    continued = tokenizer.encode_chat(messages, continue_final_message=True)[0]

    assert tokenizer.decode(closed, skip_special_tokens=False) == (
        "<bos><user>Where?<end><assistant>So<end><assistant>"
    )
    assert tokenizer.decode(continued, skip_special_tokens=False).endswith("<assistant>So")
    with pytest.raises(RequestRejected, match="role is 'cat'"):
        tokenizer.encode_chat([{"role": "cat", "content": "meow"}])[0]
