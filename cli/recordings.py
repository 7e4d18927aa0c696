"""Opening a recording for a command that shows something of it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .mistake import Mistake

if TYPE_CHECKING:
    from ..actors.recording import Recording


def open_recording(path: Path) -> "Recording":
    """Read a recording; what is lost of it is told on stderr, since it must not be overlooked."""
    from ..actors.recording import read_recording

    try:
        recording = read_recording(path)
    except OSError as error:
        raise Mistake(f"cannot read {path}: {error.strerror}") from error
    if recording.num_damaged:
        _warn(f"the last {recording.num_damaged:,} bytes are damaged and were not read")
    elif recording.end is None:
        _warn("the recording breaks off; its end was lost")
    return recording


def _warn(what: str) -> None:
    print(f"engine-cli: {what}", file=sys.stderr)
