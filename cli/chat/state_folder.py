"""Where a user's chats and their history are kept."""

import os
from pathlib import Path


def state_folder() -> Path | None:
    """The folder, which may not exist yet; None where there is no home."""
    folder = os.environ.get("XDG_STATE_HOME", "")
    try:
        base = Path(folder) if folder.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return base / "stepahead"


def private(path: str, flags: int) -> int:
    """Opens a file that only its owner reads."""
    return os.open(path, flags, 0o600)
