"""The examples in the documentation run."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def test_the_example_of_a_chat_prints_a_call(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs/chat.md").read_text(encoding="utf-8")
    example = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    names: dict[str, Any] = {}

    exec(example.replace("asyncio.run(main())", ""), names)
    asyncio.run(names["main"]())

    assert 'call: get_weather {"city": "Paris"}' in capsys.readouterr().out


def test_the_examples_of_the_readme_run_as_they_stand(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")

    for example in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(example, {})

    assert "Usage(prompt_tokens=5, completion_tokens=" in capsys.readouterr().out
