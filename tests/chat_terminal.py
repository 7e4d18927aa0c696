"""A chat on a pseudo-terminal: started, spoken to, asked."""

from pathlib import Path

from .cli_process import Terminal, environment

READY = "\n>>>"  # the prompt, after whatever came before it
SIMULATED = ("--device", "simulated", "--temperature", "0")


def started(home: Path, *arguments: str, columns: int = 100, **variables: str) -> Terminal:
    """A chat with the simulated device, at its prompt."""
    env = environment(home, **variables)
    terminal = Terminal("chat", *SIMULATED, *arguments, env=env, columns=columns)
    terminal.wait_for(READY)
    return terminal


def say(terminal: Terminal, text: str) -> None:
    """Type a line and wait until it has been taken."""
    terminal.send(f"{text}\r")
    terminal.wait_for(f"{text}\n")


def ask(terminal: Terminal, text: str) -> str:
    """Type a line and return what was shown until the next prompt."""
    say(terminal, text)
    return terminal.wait_for(READY)


def prompt_tokens(stats: str) -> tuple[int, int]:
    """How many prompt tokens there were, and how many of them were cached."""
    line = next(line for line in stats.splitlines() if line.startswith("prompt tokens"))
    numbers = [int(word) for word in line.replace(",", " ").split() if word.isdigit()]
    return numbers[0], numbers[1]
