"""RequestOptions: what a caller may say of a request beside its prompt and its sampling."""

from dataclasses import dataclass
from typing import TypedDict

from ..messages import RequestRejected
from ..messages.param_rules import as_number, as_whole, shown

MAX_SECONDS = 1e9


class ScoreOptions(TypedDict, total=False):
    """Request options that several requests may share, as keywords."""

    priority: int
    deadline: float | None
    queue_timeout: float | None
    cache_salt: str | None


class Options(ScoreOptions, total=False):
    """Request options, as keywords; RequestOptions tells what each means."""

    request_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """What a caller may say of a request beside its prompt and its sampling."""

    request_id: str | None = None  # None: the engine names it
    priority: int = 0  # lower runs first
    deadline: float | None = None  # seconds from now for the whole request
    queue_timeout: float | None = None  # seconds from now until it must have started
    cache_salt: str | None = None  # only requests with the same salt share cached blocks

    def check(self) -> None:
        """Raise RequestRejected where a value has no meaning, naming it."""
        if self.request_id is not None and (
            not isinstance(self.request_id, str) or not self.request_id
        ):
            raise RequestRejected(f"request_id is {shown(self.request_id)}; it must be a string")
        priority = as_whole(self.priority)
        if priority is None:
            raise RequestRejected(f"priority is {shown(self.priority)}; it must be a whole number")
        if not -(2**31) <= priority < 2**31:
            raise RequestRejected(f"priority is {shown(priority)}; it must fit 32 bits")
        check_seconds("deadline", self.deadline)
        check_seconds("queue_timeout", self.queue_timeout)
        check_salt(self.cache_salt)


def salt_bytes(cache_salt: str | None) -> bytes:
    """A salt as the pool compares it; None and the empty one are the same."""
    return (cache_salt or "").encode(errors="surrogatepass")


def check_salt(cache_salt: object) -> None:
    if cache_salt is not None and not isinstance(cache_salt, str):
        raise RequestRejected(f"cache_salt is {shown(cache_salt)}; it must be a text")


def check_seconds(name: str, seconds: object) -> None:
    if seconds is not None and not _is_duration(seconds):
        raise RequestRejected(
            f"{name} is {shown(seconds)}; it must be above 0 and below 1e9 seconds"
        )


def _is_duration(seconds: object) -> bool:
    number = as_number(seconds)
    return number is not None and 0 < number < MAX_SECONDS
