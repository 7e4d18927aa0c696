"""Recordings: what the actors said to each other, kept, written, read back, explained, replayed."""

from .explaining import chronicle_of, explain_request, timeline_of
from .reading import Recording, read_recording
from .recorder import Recorder
from .replay import Replayed, replay

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
