"""Findings about the machine, and what `auto` makes of it."""

import os
from collections.abc import Iterator
from pathlib import Path

from ...gpu.choices import auto_choices
from ...gpu.cuda.driver import has_driver
from ...gpu.loading.resolve import known_models, resolve_model
from ...gpu.memory import free_memory
from ...gpu.native.compiling import cache_folder, find_compiler
from ...gpu.processor import Processor
from ...messages import ModelError
from .finding import Finding

_LEAST_FREE = 10**9  # bytes; the default model and its keys and values take about as much
_INFLATION = 4  # times: a quantised file's weights, in bfloat16 and while they are repacked


def processor(found: Processor) -> Finding:
    cores = f"{found.cores} core{'s' * (found.cores != 1)} for this process"
    features = ", ".join(found.notable) or "its features are not known here"
    values = {"cores": found.cores, "machine": found.machine, "features": found.notable}
    text = f"{found.name} ({found.machine}), {cores}; {features}"
    return Finding("processor", text, {"name": found.name, **values})


def choices(found: Processor) -> Iterator[Finding]:
    """What `auto` picks here, and why."""
    for choice in auto_choices(found, has_compiler=find_compiler() is not None):
        values = {"auto": choice.value, "why": choice.why}
        yield Finding(choice.option, f"auto is {choice.value}: {choice.why}", values)


def gpu() -> Finding:
    """Whether there is a GPU, and whether `auto` takes it instead of the processor."""
    if not has_driver():
        return Finding("gpu", "none: there is no driver of NVIDIA's", {"name": None})
    try:
        from ...gpu.cuda.finding import find_gpu, why_no_gpu

        facts = find_gpu()
    except Exception as error:  # torch is missing or broken, which is a finding of its own
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        return Finding("gpu", f"not looked for ({why})", {"name": None})
    reason = why_no_gpu(facts)
    values = {
        "name": facts.name or None,
        "capability": facts.capability,
        "cuda": facts.cuda_version,
        "why_not": reason,
    }
    if reason is not None:
        return Finding("gpu", f"none that runs a model: {reason}", values)
    about = f"{facts.name}, compute capability {'.'.join(map(str, facts.capability))}"
    text = f"{about}, CUDA {facts.cuda_version}: device auto is cuda, in bfloat16"
    return Finding("gpu", text, values)


def memory(model: Path | None) -> Finding:
    """Whether what is free would hold the model."""
    free, total = free_memory(), _total_memory()
    values = {"free_bytes": free, "total_bytes": total}
    text = f"{_gb(free)} free of {_gb(total)}"
    needed = max(_LEAST_FREE, _INFLATION * _size(model))
    if free >= needed:
        return Finding("memory", text, values)
    remedy = f"the model may need {_gb(needed)}; close what else takes memory"
    return Finding("memory", text, values, remedy)


def model(name: str) -> tuple[Finding, Path | None]:
    """Where the model's files are, or the one command that brings them. Downloads nothing."""
    known = {model.name: model for model in known_models()}.get(name)
    if known is None and not os.path.exists(os.path.expanduser(name)) and name.count("/") == 1:
        return Finding("model", f"{name} is a hub id; its files were not looked for"), None
    try:
        path = resolve_model(name)
        _check_file(path)
    except ModelError as error:
        remedy = known.install if known is not None else "give a model that can be run"
        return Finding("model", str(error), {"path": None}, remedy, is_fatal=True), None
    size = _size(path)
    text = f"{name}, {path}" if str(path) != name else name
    values = {"path": str(path), "bytes": size}
    return Finding("model", f"{text} ({size / 1e6:,.0f} MB)", values), path


def _check_file(path: Path) -> None:
    """Raise ModelError for a GGUF file that is damaged or of a kind that cannot be run."""
    if not path.is_file():
        return
    try:
        from ...gpu.models.gguf_config import config_of_gguf
    except ImportError:  # torch is missing, which is a finding of its own
        return
    from ...gpu.loading.gguf_file import GgufFile

    config_of_gguf(GgufFile(path))


def cache() -> Finding:
    """Whether the folder can be written in which the compiled native decoder is kept."""
    try:
        folder = cache_folder()
    except RuntimeError:
        none = {"path": None}
        return Finding("cache", "there is no home folder", none, "set XDG_CACHE_HOME")
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    values = {"path": str(folder)}
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return Finding("cache", str(folder), values)
    remedy = f"make {existing} a folder that can be written, or set XDG_CACHE_HOME"
    return Finding("cache", f"{folder} cannot be written", values, remedy)


def _size(path: Path | None) -> int:
    if path is None:
        return 0
    if path.is_dir():
        return sum(file.stat().st_size for file in path.glob("*.safetensors"))
    return path.stat().st_size


def _total_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
