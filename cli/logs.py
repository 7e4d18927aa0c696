"""Logging, configured here and nowhere else in the package."""

import logging
import os
import sys
from typing import TYPE_CHECKING, TextIO

from .mistake import Mistake
from .output import is_plain, is_terminal

if TYPE_CHECKING:
    from structlog.typing import Processor

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


def configure_logs(target: str) -> None:
    """Log to standard error from a level on, or into a file as JSON lines from `info` on.

    From `warning` on nothing is written: what is more urgent than `info` stands among the debug
    events. So structlog, which takes a tenth of a start to import, is left alone.
    """
    level = LEVELS.get(target.lower())
    if level is None:
        _configure(_open(target), logging.INFO)
    elif level <= logging.INFO:
        _configure(sys.stderr, level)


def are_on_screen(target: str) -> bool:
    """Whether lines of such a log are to be expected between others on a terminal."""
    level = LEVELS.get(target.lower())
    return level is not None and level < logging.WARNING and is_terminal(sys.stderr)


def _open(target: str) -> TextIO:
    try:
        return open(target, "a", encoding="utf-8", buffering=1)
    except OSError as error:
        raise Mistake(
            f"no log in {target!r} ({error.strerror}); give a file or a level: {', '.join(LEVELS)}"
        ) from error


def _configure(stream: TextIO | None, level: int) -> None:
    import structlog

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            *_renderers(stream),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(stream or open(os.devnull, "w")),  # noqa: SIM115
        cache_logger_on_first_use=True,
    )


def _renderers(stream: TextIO | None) -> "list[Processor]":
    import structlog

    if is_terminal(stream):
        return [structlog.dev.ConsoleRenderer(colors=not is_plain())]
    return [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
