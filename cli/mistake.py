"""How a command ends early: by the user's mistake or by their wish."""

import click

INTERRUPTED = 130  # the exit code


class Mistake(click.ClickException):
    """Raised when a command was given something it cannot work with."""


class Interrupted(Exception):
    """Raised when the user interrupted a command, or the line that they were typing."""
