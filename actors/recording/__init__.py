"""Recordings: what the actors said to each other, kept, written, read back, explained, replayed.

The names load what they need when they are first used: an engine only needs the recorder.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .explaining import chronicle_of, explain_request, timeline_of
    from .reading import Recording, read_recording
    from .recorder import Recorder
    from .replaying import Replayed, replay

__all__ = [
    "Recorder",
    "Recording",
    "Replayed",
    "chronicle_of",
    "explain_request",
    "read_recording",
    "replay",
    "timeline_of",
]

_HOMES = {
    "Recorder": "recorder",
    "Recording": "reading",
    "Replayed": "replaying",
    "chronicle_of": "explaining",
    "explain_request": "explaining",
    "read_recording": "reading",
    "replay": "replaying",
    "timeline_of": "explaining",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
