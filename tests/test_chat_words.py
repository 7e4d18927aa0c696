"""What the command line says of a conversation, and what its JSON events tell."""

import json
from pathlib import Path
from typing import Any

import pytest

from stepahead import RequestRejected, SamplingParams
from stepahead.actors.virtual_time import run_virtual
from stepahead.cli.chat.one_answer import answer_events
from stepahead.cli.chat_words import ChatFlags
from stepahead.cli.mistake import Mistake

from .scripted import scripted_engine
from .test_chat import ANSWER, ASK, QWEN, ROOMY, TOOL


def flags(**said: Any) -> ChatFlags:
    nothing: dict[str, Any] = {"tools": None, "tool_format": None, "reasoning_format": None}
    return ChatFlags(**{**nothing, "template_option": (), **said})


def test_json_events_carry_the_parts_and_the_end_the_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    prompt = QWEN.encode_chat(ASK, tools=[TOOL])[0]

    async def scenario() -> None:
        async with scripted_engine(QWEN, [(prompt, QWEN.encode(ANSWER))], **ROOMY) as engine:
            await answer_events(engine, ASK, SamplingParams(), {"tools": [TOOL]})

    run_virtual(scenario())
    _, *deltas, end = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    parts = [part for delta in deltas for part in delta["parts"]]
    assert "".join(part.get("source", part.get("text")) for part in parts) == end["text"] == ANSWER
    assert {part["type"] for part in parts} == {"reasoning", "text", "tool_call"}
    assert end["message"]["content"] == "Let me see."
    assert end["message"]["reasoning_content"] == "Hm"
    assert end["message"]["tool_calls"][0]["function"]["name"] == "weather"


def test_options_become_the_words_of_a_chat(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps(TOOL))

    said = flags(
        tools=file,
        tool_format="mistral",
        reasoning_format="none",
        template_option=("enable_thinking=false", "date=1 May", "names=[1]"),
    )

    assert flags().words() == {}
    assert said.words() == {
        "tools": [TOOL],
        "tool_format": "mistral",
        "reasoning_format": "none",
        "template_options": {"enable_thinking": False, "date": "1 May", "names": [1]},
    }


def test_tools_that_cannot_be_read_or_are_none_are_told_before_a_model_loads(
    tmp_path: Path,
) -> None:
    broken, wrong = tmp_path / "broken", tmp_path / "wrong"
    broken.write_text("{")
    wrong.write_text("[7]")

    with pytest.raises(Mistake, match="cannot be read as JSON"):
        flags(tools=broken).words()
    with pytest.raises(RequestRejected, match="tool 1 is 7"):
        flags(tools=wrong).words()
