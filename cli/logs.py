"""Logging, configured here and nowhere else in the package."""

import logging
import os
import sys
from typing import TextIO

import structlog

from .mistake import Mistake
from .output import is_plain, is_terminal

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


def configure_logs(target: str) -> None:
    """Log to standard error from a level on, or into a file as JSON lines from `info` on."""
    level = LEVELS.get(target.lower())
    if level is not None:
        _configure(sys.stderr, level)
    else:
        _configure(_open(target), logging.INFO)


def _open(target: str) -> TextIO:
    try:
        return open(target, "a", encoding="utf-8", buffering=1)
    except OSError as error:
        raise Mistake(
            f"no log in {target!r} ({error.strerror}); give a file or a level: {', '.join(LEVELS)}"
        ) from error


def _configure(stream: TextIO | None, level: int) -> None:
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


def _renderers(stream: TextIO | None) -> list[structlog.typing.Processor]:
    if is_terminal(stream):
        return [structlog.dev.ConsoleRenderer(colors=not is_plain())]
    return [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
