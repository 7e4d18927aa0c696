"""The state of the cores as plain values, made of a snapshot; restoring.py fills it into new cores.

Every object of the cores is there field by field, and what several refer to once. What is not state
stays out: functions, actors, and views of arrays, which new cores have of their own.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from enum import Enum
from itertools import chain, groupby
from typing import Any

import numpy as np

from ...kvpool.prefix import PrefixIndex
from ...kvpool.runs import GONE, Run
from ..batching.ledger import Ledger
from .snapshot import ATOMS, NOT_STATE, Rows, Snapshot, is_message, is_own, slots_of

CONTAINERS: dict[str, type] = {
    "list": list,
    "dict": dict,
    "ordered": OrderedDict,
    "set": set,
    "deque": deque,
    "frozenset": frozenset,
}
_NAMES = {kind: name for name, kind in CONTAINERS.items()}
_SKIPPED = ["skipped"]
TIMES = "times"
FLAT = "flat "  # before the name of a container whose parts are kept as they are


def state_of(snapshot: Snapshot) -> Any:
    """What restoring.py and state_codec.py take."""
    found = _State(snapshot)
    return ["tuple", [found.of(part) for part in snapshot.root]]


class _State:
    def __init__(self, snapshot: Snapshot) -> None:
        self._contents = snapshot.contents()
        self._rows = snapshot.rows
        self._seen: dict[int, int] = {}
        self._blocks = _blocks_of_runs(self._contents)

    def of(self, value: Any) -> Any:
        kind: type = type(value)
        if kind in ATOMS:
            return value
        if id(value) in self._contents or kind in (np.ndarray, *_NAMES):
            return self._once(kind, value)
        if kind is tuple:
            return ["tuple", [self.of(part) for part in value]]
        if is_message(kind):
            return ["message", value]
        if isinstance(value, Enum):
            return ["enum", kind.__name__, value.value]
        if isinstance(value, np.generic):
            return value.item()
        assert not is_own(kind), f"a {kind.__qualname__} was not looked at"
        return _SKIPPED

    def _once(self, kind: type, value: Any) -> Any:
        """What several may refer to."""
        place = self._seen.get(id(value))
        if place is not None:
            return ["again", place]
        place = self._seen[id(value)] = len(self._seen)
        if kind is np.ndarray and id(value) not in self._contents:
            return ["array", place, value, False]
        _, content = self._contents[id(value)]
        if kind is np.ndarray:
            return ["array", place, content, True]
        if kind is bytearray:
            return ["bytes", place, content]
        if kind in _NAMES:
            return self._container(_NAMES[kind], place, content)
        return ["object", place, f"{kind.__module__}:{kind.__qualname__}", self._fields(value)]

    def _fields(self, value: object) -> dict[str, Any]:
        kind: type = type(value)
        _, content = self._contents[id(value)]
        slots = slots_of(kind)
        named = zip(slots, content, strict=True) if slots else content.items()
        left_out = NOT_STATE.get(kind, ())
        fields = {name: self.of(part) for name, part in named if name not in left_out}
        if kind is Ledger:
            fields["tokens"] = ["rows", *self._rows]
        elif kind is Run:
            fields["blocks"] = self._new_list(self._blocks.get(id(value), []))
        return fields

    def _new_list(self, parts: list[int]) -> Any:
        place = self._seen[-len(self._seen)] = len(self._seen)  # no other thing has that number
        return [FLAT + "list", place, parts]

    def _container(self, name: str, place: int, content: Any) -> Any:
        if isinstance(content, Rows):
            return [name, place, [self._new_list(row) for row in content]]
        parts = list(content.items()) if isinstance(content, dict) else list(content)
        if _is_flat(parts):
            return [FLAT + name, place, parts]
        return [name, place, list(self._in_a_row(parts))]

    def _in_a_row(self, parts: list[Any]) -> Iterator[Any]:
        """Of neighbours that are one thing only the first: blocks in a row have one owner."""
        for _, group in groupby(parts, key=id):
            first, *others = group
            part = self.of(first)
            yield [TIMES, part, 1 + len(others)] if others else part


def _blocks_of_runs(contents: dict[int, tuple[object, Any]]) -> dict[int, list[int]]:
    """By the id of a run, the blocks that its contents are found in, by place; the last is one."""
    found: dict[int, list[int]] = {}
    for thing, fields in contents.values():
        if type(thing) is not PrefixIndex:
            continue
        names = ("_run", "_place", "_is_findable")
        columns = (contents[id(fields[name])][1] for name in names)
        for block, (run, place, is_findable) in enumerate(zip(*columns, strict=True)):
            if is_findable:
                blocks = found.setdefault(id(run), [])
                blocks += [GONE] * (place + 1 - len(blocks))
                blocks[place] = block
    return found


def _is_flat(parts: list[Any]) -> bool:
    """Whether the parts are atoms, or tuples of tuples of them."""
    for _ in range(3):
        kinds = set(map(type, parts))
        if kinds <= set(ATOMS):
            return True
        if not kinds <= {tuple, *ATOMS}:
            return False
        parts = list(chain.from_iterable(part for part in parts if type(part) is tuple))
    return False
