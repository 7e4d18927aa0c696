"""What the operating system knows of a process: its age and its memory."""

import os
import sys
from pathlib import Path


def process_age() -> float | None:
    """Seconds since this process was started; None where the system does not tell (not Linux)."""
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return uptime - started / os.sysconf("SC_CLK_TCK")


def peak_memory() -> int | None:
    """Bytes this process had in memory at most, so far; None where the system does not tell."""
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def peak_memory_mb() -> int | None:
    peak = peak_memory()
    return None if peak is None else round(peak / 1e6)
