"""What a command complains of."""

import pytest


def the_mistake(capsys: pytest.CaptureFixture[str]) -> str:
    """The user's mistake as a command tells it: in one line, and nothing else is printed."""
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("engine-cli: ")
    assert said.err.count("\n") == 1
    return said.err
