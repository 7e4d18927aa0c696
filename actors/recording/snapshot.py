"""A snapshot of the cores: copies of all that may change in them, taken between two turns.

The engine stands still meanwhile, so a copy goes no deeper than one object, and what cannot change
is referred to: messages, atoms, arrays that are read-only. What the copies mean is found out when
somebody writes them: see state.py.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from itertools import chain, islice
from operator import attrgetter
from typing import Any

import numpy as np

from ...kvpool import BlockPool
from ...kvpool.continuations import Continuations
from ...kvpool.forgotten import Forgotten
from ...kvpool.free import FreeBlocks
from ...kvpool.prefix import PrefixIndex
from ...kvpool.runs import Run
from ...kvpool.tables import BlockTables
from ...kvpool.use_order import Row, UseOrder
from ..batching.ledger import Ledger
from ..batching.order import RunningOrder
from ..batching.roster import Roster
from ..batching.sequence import Sequence
from ..batching.timers import Deadlines
from ..cores import Cores

_ROOT = __name__.split(".", 1)[0]
OWN = (f"{_ROOT}.actors.batching.", f"{_ROOT}.kvpool.")  # whose objects are state
MESSAGES = f"{_ROOT}.messages."
ATOMS = (int, str, bytes, bool, float, type(None))
CONTAINERS = (list, dict, OrderedDict, set, deque, frozenset)

NOT_STATE = {
    Ledger: ("tokens", "_flat_tokens", "blocks"),  # most of them are those of nobody: see `rows`
    Continuations: ("_befores", "_tokens"),  # the pool's `rehash` has them from the index
    Run: ("blocks",),  # the index has them by block: see state.py
    Sequence: ("grammar",),  # it is led along the tokens again
}
# Looking at a part takes longer than copying it. So of what there is very much of, it is said here
# what needs no look; a wrong name fails where the snapshot is written.
_UNCHANGING: Mapping[type, Collection[str]] = {  # fields that are replaced, or met elsewhere
    BlockPool: ("_tables", "_refs", "_due"),
    Run: ("before", "first", "tokens", "is_whole", "_width"),
    Sequence: Sequence.__slots__,
}
_FLAT: Mapping[type, Collection[str]] = {  # containers of what changes not, or is met elsewhere
    Ledger: ("sequences", "_free"),
    RunningOrder: ("_orders",),
    Deadlines: ("_heap",),
    BlockPool: ("_roots",),
    BlockTables: ("refs", "_fences"),
    FreeBlocks: ("_blank", "_pinned"),
    Forgotten: ("_recent",),
    UseOrder: ("_row_of",),
    PrefixIndex: ("_place", "_runs"),
}
_ROWS_OF_FLAT: Mapping[type, Collection[str]] = {BlockTables: ("tables",)}
_OF_ONE_KIND: Mapping[type, Mapping[str, type]] = {  # containers of one kind of object, or None
    Roster: {"_live": Sequence},
    PrefixIndex: {"_run": Run},
    UseOrder: {"_rows": Row},
}
_REPLACED: Mapping[type, Collection[str]] = {  # containers that never change themselves
    Forgotten: ("_older",),
    Row: ("blocks",),
}


class Rows:
    """Copies of lists of what changes not, in one list: the collector of garbage looks at lists
    again and again, as long as a segment is kept."""

    def __init__(self, rows: list[list[Any]]) -> None:
        self._parts = list(chain.from_iterable(rows))
        self._lengths = list(map(len, rows))

    def __iter__(self) -> Iterator[list[Any]]:
        parts = iter(self._parts)
        return (list(islice(parts, length)) for length in self._lengths)


class Snapshot:
    """The cores as they were."""

    def __init__(self, cores: Cores) -> None:
        self.root = (cores.batcher, cores.pool, cores.scheduler.failures_in_a_row)
        self.rows: tuple[list[int], list[Any]] = ([], [])  # slots, and the tokens said in each
        self.alike: list[tuple[list[Any], tuple[Any, ...]]] = []  # objects, their fields by column
        self._contents: dict[int, tuple[object, Any]] = {}
        todo: list[Any] = list(self.root)
        for value in todo:  # which grows meanwhile
            look = _LOOKS[type(value)]
            if look is not None and id(value) not in self._contents:
                look(self, value, todo)

    def keep(self, value: Any, copy: Any) -> None:
        self._contents[id(value)] = value, copy

    def contents(self) -> dict[int, tuple[object, Any]]:
        """By its id, each thing that changes as (the thing, what was in it): of an object its
        fields, by name or in the order of its slots."""
        found = self._contents.copy()
        for things, columns in self.alike:
            kept = zip(things, zip(*columns, strict=True), strict=True)
            found.update(zip(map(id, things), kept, strict=True))
        return found


_Look = Callable[[Snapshot, Any, list[Any]], None]  # keeps a value; adds what it refers to


class _Looks(dict[type, _Look | None]):
    """How values of each type are looked at; None where they never change."""

    def __missing__(self, kind: type) -> _Look | None:
        look = self[kind] = self._of(kind)
        return look

    def _of(self, kind: type) -> _Look | None:
        if kind in ATOMS or issubclass(kind, (Enum, np.generic)) or is_message(kind):
            return None
        if kind is np.ndarray:
            return _look_at_array
        if kind is bytearray:
            return lambda snapshot, value, _: snapshot.keep(value, bytes(value))
        if issubclass(kind, dict):
            return _look_at_dict
        if kind is tuple:
            return _look_at_tuple
        if kind in CONTAINERS:
            return _look_at_container
        if is_own(kind):
            return _look_at(kind)
        return None  # a function, an actor


def is_own(kind: type) -> bool:
    """Whether its objects are parts of the cores."""
    return f"{kind.__module__}.".startswith(OWN)


def slots_of(kind: type) -> dict[str, None]:
    """The fields of an object that has no dict, but for those that are not state."""
    slots = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
    return dict.fromkeys(name for name in slots if name not in NOT_STATE.get(kind, ()))


def is_message(kind: type) -> bool:
    return f"{kind.__module__}.".startswith(MESSAGES) and is_dataclass(kind)


def _look_at(kind: type) -> _Look:
    """Keep the fields of one kind of object, and look at those that may change."""
    slots, fields_of = slots_of(kind), _fields_of(kind)
    flat, rows = _FLAT.get(kind, ()), _ROWS_OF_FLAT.get(kind, ())
    of_one_kind, replaced = _OF_ONE_KIND.get(kind, {}), _REPLACED.get(kind, ())
    known = _known(kind)

    def look(snapshot: Snapshot, value: Any, todo: list[Any]) -> None:
        snapshot.keep(value, fields_of(value))
        for name in (slots or vars(value)).keys() - known:
            part = getattr(value, name)
            if _LOOKS[type(part)]:
                todo.append(part)
        for name in flat:
            part = getattr(value, name)
            snapshot.keep(part, part.copy())
        for name in rows:
            part = getattr(value, name)
            snapshot.keep(part, Rows(part))
        for name in replaced:
            part = getattr(value, name)
            snapshot.keep(part, part)
        for name, of in of_one_kind.items():
            part = getattr(value, name)
            snapshot.keep(part, part.copy())
            _look_at_all(snapshot, of, part.values() if isinstance(part, dict) else part, todo)
        if kind is Ledger:
            snapshot.rows = _rows(value)

    return look


def _look_at_all(snapshot: Snapshot, kind: type, values: Iterable[Any], todo: list[Any]) -> None:
    """Of one kind, at once."""
    different = [value for value in set(values) if value is not None]
    if different:
        columns = tuple(zip(*map(_fields_of(kind), different), strict=True))
        snapshot.alike.append((different, columns))
    for name in _REPLACED.get(kind, ()):
        for part in map(attrgetter(name), different):
            snapshot.keep(part, part)
    for name in slots_of(kind).keys() - _known(kind):
        todo += [part for part in map(attrgetter(name), different) if _LOOKS[type(part)]]


def _known(kind: type) -> set[str]:
    """The fields that need no look of their own."""
    tables = (NOT_STATE, _UNCHANGING, _FLAT, _ROWS_OF_FLAT, _OF_ONE_KIND, _REPLACED)
    return {name for table in tables for name in table.get(kind, ())}


def _fields_of(kind: type) -> Callable[[Any], Any]:
    """A copy of an object's fields: by name, or in the order of its slots."""
    slots = slots_of(kind)
    return attrgetter(*slots) if slots else _dict_of


def _dict_of(value: object) -> dict[str, Any]:
    return vars(value).copy()


def _rows(ledger: Ledger) -> tuple[list[int], list[Any]]:
    lengths = ledger.confirmed.tolist()
    live = [(slot, each) for slot, each in enumerate(ledger.sequences) if each is not None]
    said = [
        ledger.tokens[slot, len(each.request.prompt) : lengths[slot]].copy() for slot, each in live
    ]
    return [slot for slot, _ in live], said


def _look_at_array(snapshot: Snapshot, value: Any, _: list[Any]) -> None:
    if value.flags.writeable:
        snapshot.keep(value, value.copy())


def _look_at_dict(snapshot: Snapshot, value: Any, todo: list[Any]) -> None:
    snapshot.keep(value, value.copy())
    todo += [key for key in value if _LOOKS[type(key)]]
    todo += [part for part in value.values() if _LOOKS[type(part)]]


def _look_at_tuple(_: Snapshot, value: Any, todo: list[Any]) -> None:
    todo += [part for part in value if _LOOKS[type(part)]]


def _look_at_container(snapshot: Snapshot, value: Any, todo: list[Any]) -> None:
    snapshot.keep(value, value.copy())
    todo += [part for part in value if _LOOKS[type(part)]]


_LOOKS = _Looks()
