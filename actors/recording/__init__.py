"""Recordings: what the actors said to each other, kept, written, read back and replayed."""

from .reading import Recording, read_recording
from .recorder import Recorder
from .replay import Replayed, replay

__all__ = ["Recorder", "Recording", "Replayed", "read_recording", "replay"]
