"""The user's mistakes that are found only after the command line has been read."""

import click


class Mistake(click.ClickException):
    """Raised when a command was given something it cannot work with."""
