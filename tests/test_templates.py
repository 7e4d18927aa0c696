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


# The same as transformers

TEMPLATES = {
    "qwen": (
        "{%- if tools %}\n{{- '<|im_start|>system\\n# Tools\\n<tools>' }}\n"
        '{%- for tool in tools %}\n{{- "\\n" }}\n{{- tool | tojson }}\n{%- endfor %}\n'
        "{{- '\\n</tools>\\nReturn <tool_call>\\n{\"name\": …}\\n</tool_call><|im_end|>\\n' }}\n"
        "{%- endif %}\n{%- set ns = namespace(last=messages|length - 1) %}\n"
        "{%- for message in messages %}\n"
        "{%- if message.role == 'tool' %}\n"
        "{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}\n"
        "{%- else %}\n{{- '<|im_start|>' + message.role + '\\n' + message.content }}\n"
        "{%- if message.tool_calls %}\n{%- for tool_call in message.tool_calls %}\n"
        "{%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}\n"
        '{{- \'<tool_call>\\n{"name": "\' + tool_call.name + \'", "arguments": \' }}\n'
        "{{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}\n"
        "{%- endfor %}\n{%- endif %}\n{%- endif %}\n{{- '<|im_end|>\\n' }}\n{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n{{- '<|im_start|>assistant\\n' }}\n"
        "{%- if enable_thinking is defined and enable_thinking is false %}\n"
        "{{- '<think>\\n\\n</think>\\n\\n' }}\n{%- endif %}\n{%- endif %}\n"
    ),
    "llama": (
        "{{- bos_token }}\n{%- if not date_string is defined %}\n"
        '{%- set date_string = "26 Jul 2024" %}\n{%- endif %}\n'
        "{%- if messages[0]['role'] == 'system' %}\n"
        "{%- set system_message = messages[0]['content']|trim %}\n"
        "{%- set messages = messages[1:] %}\n{%- else %}\n"
        '{%- set system_message = "" %}\n{%- endif %}\n'
        '{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date_string }}\n'
        "{{- system_message }}\n{{- '<|eot_id|>' }}\n"
        "{%- if tools is not none %}\n{%- for t in tools %}\n{{- t | tojson(indent=4) }}\n"
        "{%- endfor %}\n{%- endif %}\n{%- for message in messages %}\n"
        "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}\n"
        "{{- message['content'] | trim + '<|eot_id|>' }}\n{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n"
        "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n{%- endif %}\n"
    ),
    "mistral": (
        "{{ bos_token }}{% for message in messages %}"
        "{% if message['role'] not in ['user', 'assistant', 'system', 'tool'] %}"
        "{{ raise_exception('unknown role') }}{% endif %}"
        "{% if message['role'] == 'user' %}"
        "{% if tools and loop.last %}{{ '[AVAILABLE_TOOLS] ' + (tools | tojson) }}{% endif %}"
        "{{ '[INST] ' + message['content'] + ' [/INST]' }}"
        "{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}"
    ),
}
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Größe <b> & 'so'"}},
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
LONG: list[dict[str, Any]] = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "Wetter in Zürich?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
        ],
    },
    {"role": "tool", "content": '{"t": 3}'},
    {"role": "user", "content": "And now?"},
]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("tools", [None, [TOOL]])
@pytest.mark.parametrize("options", [{}, {"enable_thinking": False, "date_string": "1 May 2026"}])
@pytest.mark.parametrize("opens_a_turn", [True, False])
def test_templates_write_what_transformers_writes(
    name: str, tools: list[dict[str, Any]] | None, options: dict[str, object], opens_a_turn: bool
) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    special = {"bos_token": "<s>", "eos_token": "</s>"}
    theirs = render_jinja_template(
        [LONG],
        tools=tools,
        chat_template=TEMPLATES[name],
        add_generation_prompt=opens_a_turn,
        **options,
        **special,
    )

    ours = JinjaTemplate(TEMPLATES[name], special).render(
        LONG, tools=tools, options=options, add_generation_prompt=opens_a_turn
    )

    assert ours == (theirs[0][0] if isinstance(theirs[0], list) else theirs[0])


def test_a_bare_function_is_a_tool_and_no_tools_are_none() -> None:
    bare = render("{{ tools | tojson }}", tools=[TOOL["function"]])

    assert bare == render("{{ tools | tojson }}", tools=[TOOL])
    assert render("{{ tools is none }}", tools=[]) == "True"


def test_tools_that_the_template_would_not_show_are_refused() -> None:
    with pytest.raises(RequestRejected, match="does not show tools"):
        render(CHATML, tools=[TOOL])


def test_options_cannot_replace_the_conversation() -> None:
    assert render("{{ messages[0].content }}", options={"messages": [], "tools": 1}) == "hi"
