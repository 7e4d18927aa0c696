"""Torch's largest library, mapped and linked ahead of `import torch`, which then finds it done.

Linking takes a fifth of that import and needs no interpreter, so it can run on a thread while
Python modules are imported; `import torch` itself would hold every other thread up meanwhile.
"""

import ctypes
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path


def preload_torch() -> threading.Thread | None:
    """Begin, and return the thread that does it; None where there is nothing to be done.

    Imports nothing. What goes wrong here goes wrong again in `import torch`, which can say it.
    """
    library = _library()
    if library is None or "torch" in sys.modules:
        return None
    thread = threading.Thread(target=_link, args=(library,), name="stepahead-preload", daemon=True)
    thread.start()
    return thread


def _library() -> Path | None:
    """Where torch's computing library is, if this is a system whose names are known."""
    suffix = {"linux": ".so", "darwin": ".dylib"}.get(sys.platform)
    spec = find_spec("torch")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = [Path(folder) / "lib" / f"libtorch_cpu{suffix}" for folder in folders]
    return next((file for file in files if file.is_file()), None)


def _link(library: Path) -> None:
    with suppress(OSError):
        ctypes.CDLL(str(library))
