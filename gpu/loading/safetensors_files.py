"""SafetensorsFiles: the weight files of a Hugging Face folder, one or several with an index."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...messages import Floats, ModelError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_BUFFERS = ("rotary_emb.inv_freq",)  # computed values that old checkpoints carry along


class SafetensorsFiles:
    """Tensors of a folder. With an index only the files that it names are read."""

    def __init__(self, folder: Path) -> None:
        self.source = str(folder)
        self._files: dict[str, Any] = {}  # tensor name: open file
        for path, expected in _weight_files(folder).items():
            file = _open(path)
            names = set(file.keys())
            absent = sorted(expected - names)
            if absent:
                raise ModelError(f"{path} lacks tensor {absent[0]}, which {_INDEX} promises")
            self._files |= dict.fromkeys(names, file)

    def names(self) -> Iterable[str]:
        return (name for name in self._files if not name.endswith(_BUFFERS))

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._files[name].get_slice(name).get_shape())

    def floats(self, name: str) -> Floats:
        out = torch.empty(self.shape(name))
        self.read(name, out)
        values: Floats = out.numpy()
        return values

    def read(self, name: str, out: Tensor) -> None:
        try:
            tensor: Tensor = self._files[name].get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"{self.source}: tensor {name} cannot be read: {error}") from error
        if tensor.dtype not in _FLOATS:
            raise ModelError(
                f"{self.source}: tensor {name} has type {tensor.dtype}; quantised checkpoints of "
                f"this kind cannot be run"
            )
        out.copy_(tensor)


def _weight_files(folder: Path) -> dict[Path, set[str]]:
    """The files to read, with the tensors that an index promises in each."""
    index = folder / _INDEX
    if index.is_file():
        return _indexed_files(index)
    if (folder / _SINGLE).is_file():
        return {folder / _SINGLE: set()}
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return {found[0]: set()}
    if found:
        raise ModelError(f"{folder} has {len(found)} safetensors files and no {_INDEX}")
    raise ModelError(f"{folder} has no weights: a {_SINGLE} or a {_INDEX} was expected")


def _indexed_files(index: Path) -> dict[Path, set[str]]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        places = {str(name): index.parent / str(file) for name, file in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} is not an index of weights: {error}") from error
    files: dict[Path, set[str]] = {}
    for name, path in places.items():
        if path.parent != index.parent:
            raise ModelError(f"{index} names {path}, which is outside its folder")
        if not path.is_file():
            raise ModelError(f"{index} names {path.name}, which is not there")
        files.setdefault(path, set()).add(name)
    return files


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is not a whole safetensors file: {error}") from error
