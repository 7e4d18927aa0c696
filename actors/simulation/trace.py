"""Traces: which request comes when, and how long it is; read from CSV or JSON lines."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...messages import ConfigError

MAX_TOKENS = 2**31 - 1
MAX_SECONDS = 1e9
REQUIRED = ("arrival", "prompt_tokens", "output_tokens")
FIELDS = (*REQUIRED, "prefix_group", "prefix_tokens", "priority")


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace."""

    arrival: float  # seconds from the start
    prompt_tokens: int
    output_tokens: int
    prefix_group: str | None = None
    prefix_tokens: int = 0  # leading tokens that its group has in common
    priority: int = 0  # lower runs first


def read_trace(path: Path) -> list[TraceRequest]:
    """The requests of a file, in the order of arrival. Raises ConfigError, naming line and field.

    A file that begins with `{` holds JSON lines; any other is CSV, with a header.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text") from error
    rows = _json_rows if text.lstrip().startswith("{") else _csv_rows
    requests: list[TraceRequest] = []
    for line, row in rows(path, text):
        try:
            requests.append(_request(row))
        except _BadField as error:
            raise ConfigError(f"{path}, line {line}: {error}") from error
    if not requests:
        raise ConfigError(f"{path} holds no requests")
    return sorted(requests, key=lambda request: request.arrival)


Row = Mapping[str, object]


class _BadField(ValueError):
    """Says which field is wrong and what would be right."""


def _json_rows(path: Path, text: str) -> Iterator[tuple[int, Row]]:
    for line, entry in enumerate(text.split("\n"), start=1):
        if not entry.strip():
            continue
        try:
            row = json.loads(entry)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}, line {line}: not a JSON object: {error}") from error
        if not isinstance(row, dict):
            raise ConfigError(f"{path}, line {line}: not a JSON object")
        _check_names(path, line, list(row))
        yield line, {name: value for name, value in row.items() if value is not None}


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, Row]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    names: list[str] = []
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if not names:
                names = [cell.strip() for cell in cells]
                _check_names(path, reader.line_num, names)
                continue
            if len(cells) != len(names):
                raise ConfigError(
                    f"{path}, line {reader.line_num}: {len(cells)} fields where the header "
                    f"names {len(names)}"
                )
            stripped = ((name, cell.strip()) for name, cell in zip(names, cells, strict=True))
            yield reader.line_num, {name: _value(name, cell) for name, cell in stripped if cell}
    except csv.Error as error:
        raise ConfigError(f"{path}, line {reader.line_num}: {error}") from error


def _check_names(path: Path, line: int, names: list[str]) -> None:
    for name in names:
        if name not in FIELDS:
            raise ConfigError(
                f"{path}, line {line}: there is no field {name!r}; the fields are "
                f"{', '.join(FIELDS)}"
            )
        if names.count(name) > 1:
            raise ConfigError(f"{path}, line {line}: the field {name} is there twice")
    for name in REQUIRED:
        if name not in names:
            raise ConfigError(f"{path}, line {line}: the field {name} is missing")


def _value(name: str, cell: str) -> object:
    """What a CSV cell says: a number where it is one, but a group is a name."""
    for kind in () if name == "prefix_group" else (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell


def _request(row: Row) -> TraceRequest:
    for name in REQUIRED:
        if name not in row:
            raise _BadField(f"{name} is empty")
    prompt_tokens = _whole(row, "prompt_tokens", 1, MAX_TOKENS)
    group = _group(row)
    if (group is None) != ("prefix_tokens" not in row):
        missing = "prefix_group" if group is None else "prefix_tokens"
        raise _BadField(f"{missing} is empty; prefix_group and prefix_tokens go together")
    return TraceRequest(
        arrival=_seconds(row, "arrival"),
        prompt_tokens=prompt_tokens,
        output_tokens=_whole(row, "output_tokens", 1, MAX_TOKENS),
        prefix_group=group,
        prefix_tokens=_whole(row, "prefix_tokens", 0, prompt_tokens) if group is not None else 0,
        priority=_whole(row, "priority", -(2**31), 2**31 - 1) if "priority" in row else 0,
    )


def _seconds(row: Row, name: str) -> float:
    value = row[name]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and 0 <= value <= MAX_SECONDS:  # type: ignore[operator]  # it is a number
        return float(value)  # type: ignore[arg-type]  # it is a number
    raise _BadField(f"{name} is {_short(value)}; it must be seconds from 0 to {MAX_SECONDS:,.0f}")


def _whole(row: Row, name: str, least: int, most: int) -> int:
    value = row[name]
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    raise _BadField(
        f"{name} is {_short(value)}; it must be a whole number from {least:,} to {most:,}"
    )


def _group(row: Row) -> str | None:
    value = row.get("prefix_group")
    if value is None:
        return None
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    raise _BadField(f"prefix_group is {_short(value)}; it must be a name")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
