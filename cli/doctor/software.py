"""Findings about what is installed."""

import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from ... import __version__
from ...gpu.native.compiling import COMPILERS, find_compiler
from .finding import Finding

_LIBRARIES = ("torch", "numpy", "tokenizers", "transformers", "safetensors")


def engine() -> Finding:
    values = {"stepahead": __version__, "python": platform.python_version()}
    text = f"stepahead {__version__} on Python {values['python']}, {platform.platform(terse=True)}"
    return Finding("engine", text, values)


def libraries() -> Finding:
    found = {name: _version(name) for name in _LIBRARIES}
    missing = [name for name, number in found.items() if number is None]
    text = ", ".join(f"{name} {number or 'missing'}" for name, number in found.items())
    if not missing:
        return Finding("libraries", text, found)
    remedy = f"install what is missing: pip install {' '.join(missing)}"
    return Finding("libraries", text, found, remedy, is_fatal=True)


def torch() -> Finding:
    """Whether torch works, found out by letting it multiply, and with how many threads."""
    try:
        import torch

        ones = torch.ones(2, 2)
        if (ones @ ones).sum().item() != 8:
            raise ArithmeticError("it multiplies wrongly")
    except Exception as error:  # a broken installation raises anything
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        remedy = "install torch again: pip install --force-reinstall torch"
        return Finding("torch", f"does not work ({why})", {}, remedy, is_fatal=True)
    values = {
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "onednn": bool(torch._C._has_mkldnn),
    }
    onednn = "with oneDNN" if values["onednn"] else "without oneDNN"
    threads = f"{values['threads']} thread{'s' * (values['threads'] != 1)}"
    return Finding("torch", f"{threads}, {values['capability']}, {onednn}", values)


def compiler() -> Finding:
    """What compiles the native decoder, at its first use."""
    found = find_compiler()
    if found is None:
        text = f"none found ({', '.join(COMPILERS)}, or what CC names)"
        remedy = "install one, as gcc: without it quantised weights are unpacked, which is slower"
        return Finding("compiler", text, {"path": None}, remedy)
    about = _first_line([found, "--version"])
    return Finding("compiler", f"{found}, {about}", {"path": found, "version": about})


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return "which does not run"
    return (done.stdout or done.stderr).strip().partition("\n")[0] or "which says nothing"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def terminal(environment: Mapping[str, str]) -> Finding:
    """How answers will look: the kind of terminal, its size, and the encoding of the output."""
    encoding = getattr(sys.stdout, "encoding", None) or "unknown"
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    size = shutil.get_terminal_size() if is_terminal else None
    values = {
        "is_terminal": is_terminal,
        "term": environment.get("TERM"),
        "encoding": encoding,
        "columns": size.columns if size is not None else None,
        "no_color": bool(environment.get("NO_COLOR")),
    }
    where = f"{values['term'] or 'no TERM'}, {values['columns']} columns" if size else "a pipe"
    plain = ", without colours" if values["no_color"] else ""
    text = f"{where}, {encoding}{plain}"
    if encoding.lower().replace("-", "") == "utf8":
        return Finding("output", text, values)
    remedy = "letters outside of it are lost; set PYTHONUTF8=1, or a UTF-8 locale"
    return Finding("output", text, values, remedy)
