"""Compile the decoder for this processor, once: a shared library in the user's cache folder.

Its name is a hash of the source, the command, the compiler's file and the processor's features, so
another machine or another version never loads it; it appears under its name only when it is whole.
"""

import os
import platform
import shutil
import tempfile
from hashlib import blake2b
from pathlib import Path

SOURCE = Path(__file__).with_name("decoder.c")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fno-math-errno", "-shared", "-fPIC", "-pthread")
TIMEOUT_S = 120
MAX_KEPT = 4  # libraries in the folder; the oldest goes


class NoCompiler(RuntimeError):
    """The native decoder cannot be had here; the text says why."""


def compiled_library() -> Path:
    """The library's path, compiled if it is not there. Raises NoCompiler."""
    compiler = find_compiler()
    if compiler is None:
        raise NoCompiler(f"no C compiler was found ({', '.join(COMPILERS)}, or what CC names)")
    folder = cache_folder()
    target = folder / f"decoder-{_key(compiler)}.so"
    if not target.exists():
        _compile(compiler, target)
    return target


def find_compiler() -> str | None:
    """What CC names, or the first of the usual ones."""
    named = os.environ.get("CC")
    for name in (named,) if named else COMPILERS:
        found = shutil.which(name)
        if found is not None:
            return found
    return None


def cache_folder() -> Path:
    """Where compiled code is kept for this user."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "stepahead" / "native"
    except RuntimeError as error:
        raise NoCompiler("there is no home folder to keep compiled code in") from error


def _key(compiler: str) -> str:
    found = os.stat(compiler)  # asking it for its version would take longer than all the rest
    identity = f"{os.path.realpath(compiler)} {found.st_size} {found.st_mtime_ns}"
    sources = "".join(path.read_text() for path in sorted(SOURCE.parent.glob("*.[ch]")))
    words = (sources, " ".join(FLAGS), identity, platform.machine(), _features())
    return blake2b("\0".join(words).encode(), digest_size=12).hexdigest()


def _features() -> str:
    """The processor's features as the system lists them: `-march=native` depends on them."""
    try:
        with Path("/proc/cpuinfo").open() as lines:  # of the first; the others may be hundreds
            return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        return platform.processor()


def _compile(compiler: str, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / "decoder.so"
            _run([compiler, *FLAGS, str(SOURCE), "-o", str(made), "-lm"])
            made.replace(target)
        kept = sorted(target.parent.glob("decoder-*.so"), key=lambda path: path.stat().st_mtime)
        for old in kept[:-MAX_KEPT]:
            old.unlink(missing_ok=True)  # who has it loaded keeps it
    except OSError as error:
        raise NoCompiler(f"cannot write to {target.parent}: {error.strerror or error}") from error


def _run(command: list[str]) -> None:
    import subprocess  # where there is something to compile, which is once

    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoCompiler(f"{command[0]} does not run: {error}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        told = [line for line in lines if "error" in line] or lines or ["it said nothing"]
        raise NoCompiler(f"{command[0]} failed: {told[0]}")
