"""A script: everything that happens in one life, as plain values; nothing is left to chance.

Moments are milliseconds of virtual time. At one moment actors take turns one after another; an
operation with `hops` lets that many turns of the event loop pass first, so that it falls between
any two messages.
"""

from dataclasses import dataclass, fields
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The engine and its oracle."""

    num_blocks: int = 16
    num_host_blocks: int | None = None
    max_model_len: int = 64
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 64
    long_prefill_token_threshold: int | None = None
    steps_in_flight: int = 2
    prefix_caching: bool = True
    watermark: float = 0.0
    ageing: float | None = None  # seconds
    prefix_ttl: float | None = None  # seconds
    max_waiting: int = 100
    eos_every: int = 0
    drafts: tuple[str, ...] = ()  # kinds of guesses, by turns (tests/drafters.py)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Something that happens at a moment."""

    at: int = 0  # milliseconds
    hops: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit(Operation):
    """A request, and how its caller behaves.

    Its prompt is the first `shared` tokens of a family and `own` ones that only requests with the
    same `tail` share.
    """

    name: str
    family: int = 0
    shared: int = 0
    own: int = 1
    tail: int = 0
    max_tokens: int = 1
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    priority: int = 0
    salt: str | None = None
    deadline: int | None = None  # milliseconds
    queue_timeout: int | None = None  # milliseconds
    pause: int = 0  # milliseconds between two reads
    leave_after: int | None = None  # tokens, after which nobody reads any more
    is_whole: bool = False  # the caller waits for the whole answer

    def prompt(self) -> list[int]:
        own = [_letter(1000 + self.tail, place) for place in range(self.own)]
        return family_tokens(self.family, self.shared) + own


def family_tokens(family: int, count: int) -> list[int]:
    """The first tokens of a family's prompts."""
    return [_letter(family, place) for place in range(count)]


def _letter(text: int, place: int) -> int:
    """A printable character; texts differ from their start."""
    return 32 + (text * 7919 + place * 31 + text * place * 7) % 95


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort(Operation):
    """Somebody aborts a request by its name."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel(Operation):
    """The caller's task is cancelled."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(Operation):
    """The engine plans no further steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(Operation):
    """It goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetCache(Operation):
    """Every cached prefix is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain(Operation):
    """New requests are refused, for some time or until all have ended; then it goes on."""

    timeout: int | None = None  # milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadWeights(Operation):
    """The device loads other weights under whatever runs."""

    source: str = "other weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin(Operation):
    """The first `shared` tokens of a family's prompts stay cached."""

    name: str
    family: int = 0
    shared: int = 4
    salt: str | None = None
    ttl: int | None = None  # milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpin(Operation):
    """A pin is let go of."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailRow(Operation):
    """A row of the next step that samples comes back useless."""

    row: int = 0  # among those that sample, counted round


@dataclass(frozen=True, slots=True, kw_only=True)
class FailStep(Operation):
    """The device gives nothing for its next step and those that are queued behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakDevice(Operation):
    """From now on every step fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillExecutor(Operation):
    """The Executor dies of its next launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Close(Operation):
    """The engine is closed, whoever still waits."""


@dataclass(frozen=True, slots=True)
class Script:
    """One life."""

    settings: Settings
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        """Python that makes it again; what is as usual is left out."""
        lines = [f"        {_source(operation)}," for operation in self.operations]
        return "\n".join(
            ["Script(", f"    {_source(self.settings)},", "    (", *lines, "    ),", ")"]
        )


Value: TypeAlias = Settings | Operation


def _source(value: Value) -> str:
    given = {f.name: getattr(value, f.name) for f in fields(value)}
    usual: dict[str, Any] = {f.name: f.default for f in fields(value)}
    words = [f"{name}={given[name]!r}" for name in given if given[name] != usual[name]]
    return f"{type(value).__name__}({', '.join(words)})"
