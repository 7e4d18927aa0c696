"""What is told of a failing seed: the shortest script, what is wrong, and a recording of it."""

from pathlib import Path

from .draw import draw_script
from .life import Violation, live
from .shrink import shrink


def report_failure(seed: int, folder: Path) -> str:
    """Shrink the seed's script, record its life in the folder, and tell about it."""
    script = shrink(draw_script(seed))
    path = folder / f"seed-{seed}.recording"
    try:
        live(script, record=path)
    except Violation as violation:
        replay = f"recorded; plan it again with: engine-cli replay {path}"
        if script.settings.drafts:  # they are no messages
            replay = f"recorded in {path}; replay() wants the script's drafter, too"
        return f"{script}\n\n{violation}\n\n{replay}"
    raise AssertionError("a script failed while it was shrunk, and does not any more")
