"""Whether there is a driver that CUDA could start with; asked without torch, which takes a second.

Where there is none no GPU can be found, so nobody has to look. Where there is one, `finding` looks.
"""

import ctypes
import sys

_LIBRARIES = {"linux": "libcuda.so.1", "win32": "nvcuda.dll"}  # what the CUDA runtime opens


def has_driver() -> bool:
    """Whether the driver's library can be loaded."""
    name = _LIBRARIES.get(sys.platform)
    if name is None:
        return False
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
