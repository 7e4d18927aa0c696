"""A story as text: a line for what happened, indented lines for why it took so long."""

from collections.abc import Iterator

from ...messages import PrefixAccount, PrefixEnd
from .story import (
    Arrived,
    Cause,
    Chunk,
    Event,
    FirstToken,
    GaveWay,
    Over,
    Phase,
    Stall,
    Started,
    Story,
    Wait,
    Waited,
    WentOn,
)

MOST_MATES = 4

_CAUSES = {
    Cause.TURN: "for the Scheduler's turn",
    Cause.STEP: "for a step in flight, to be planned after it",
    Cause.GRAMMAR: "for its grammar to be compiled",
    Cause.PAUSE: "because the engine was paused",
    Cause.WEIGHTS: "for other weights",
    Cause.SEAT: "for a seat",
    Cause.BUDGET: "for room in the step",
    Cause.BLOCKS: "for blocks",
    Cause.PREFIX: "for a prefix that another request computed",
    Cause.OTHERS: "for its turn",
    Cause.DRAIN: "for a step in flight that mentions it",
    Cause.HOST: "for the host, with nothing on the device",
    Cause.DEVICE: "for the device",
}
_ENDS = {
    PrefixEnd.WHOLE: "all that can be",
    PrefixEnd.SHORT: "it has no full block",
    PrefixEnd.NEW: "what comes next was never cached",
    PrefixEnd.EVICTED: "what comes next was evicted",
    PrefixEnd.EXPIRED: "what comes next had expired",
    PrefixEnd.RESET: "the cache was reset",
    PrefixEnd.FAILED: "the step that was to write what comes next failed",
}


def tell(story: Story) -> str:
    """The story for people, with times since the arrival."""
    return "\n".join([_title(story), *_lines(story), _times(story), _tokens(story)]) + "\n"


def _title(story: Story) -> str:
    tokens = story.tokens
    state = "" if story.is_over else ", still live"
    return (
        f"{story.name} (serial {story.serial}): "
        f"{tokens.prompt} prompt token{'s' * (tokens.prompt != 1)}, "
        f"{tokens.cached} of them cached, {tokens.completion} generated, "
        f"{_ms(story.end_ns - story.begin_ns)}{state}"
    )


def _lines(story: Story) -> Iterator[str]:
    if story.phases[0].phase == Phase.FORGOTTEN:
        yield f"  (the log reaches back {_ms(story.end_ns - story.phases[0].end_ns)} only)"
    for event in story.events:
        first, *more = _told(event, story)
        yield f"{_ms(event.t_ns - story.begin_ns):>12}  {first}"
        yield from (f"{'':>14}{line}" for line in more)


def _told(event: Event, story: Story) -> list[str]:
    match event:
        case Arrived():
            tokens = f"{event.prompt_tokens} prompt token{'s' * (event.prompt_tokens != 1)}"
            return [f"arrived: {tokens}, priority {event.priority}"]
        case Started():
            return [f"admitted; {_prefix(event, story)}", *_waits(event.waits)]
        case Chunk():
            return [_chunk(event)]
        case FirstToken():
            return ["first token"]
        case GaveWay():
            who = f" by {', '.join(event.by)}" if event.by else ""
            return [f"preempted{who}: {event.why}; keeps {event.kept_tokens} positions"]
        case WentOn():
            return [f"resumed from position {event.start}", *_waits(event.waits)]
        case Stall():
            gap = _ms(event.t_ns - event.begin_ns)
            return [f"token {event.token} came {gap} after the one before", *_waits(event.causes)]
        case Waited():
            return ["waited", *_waits(event.waits)]
        case Over():
            reason = "" if event.stop_reason is None else f" ({event.stop_reason!r})"
            return [f"finished: {event.finish_reason}{reason}"]


def _prefix(event: Started, story: Story) -> str:
    found = f"{event.cached_tokens} of {story.tokens.prompt} tokens found in the prefix cache"
    return found if event.account is None else f"{found}: {_end(event.account)}"


def _end(account: PrefixAccount) -> str:
    if account.first_difference is None:
        return _ENDS[account.end]
    return f"token {account.first_difference} differs from the closest that is cached"


def _chunk(event: Chunk) -> str:
    what = "again " if event.is_again else ""
    mates = ", ".join(event.mates[:MOST_MATES])
    more = len(event.mates) - MOST_MATES
    beside = f" beside {mates}{f' and {more} more' if more > 0 else ''}" if mates else " alone"
    failed = "" if event.failed is None else f"; it failed: {event.failed}"
    last = event.start + event.length - 1
    return (
        f"step {event.step} computes {what}positions {event.start} to {last},{beside} "
        f"({event.step_tokens} token{'s' * (event.step_tokens != 1)} in all){failed}"
    )


def _waits(waits: tuple[Wait, ...]) -> Iterator[str]:
    for wait in waits:
        detail = f" ({wait.detail})" if wait.detail else ""
        yield f"{_ms(wait.end_ns - wait.begin_ns)} {_CAUSES[wait.cause]}{detail}"


def _times(story: Story) -> str:
    spent = [(phase, story.seconds_in(phase)) for phase in Phase]
    parts = [f"{phase} {seconds * 1e3:.1f}" for phase, seconds in spent if seconds]
    gaps = ""
    if story.gap_p50_ns is not None and story.gap_max_ns is not None:
        gaps = f"; between tokens {_ms(story.gap_p50_ns)}, at most {_ms(story.gap_max_ns)}"
    return f"time: {' + '.join(parts) or '0.0'} = {_ms(story.end_ns - story.begin_ns)}{gaps}"


def _tokens(story: Story) -> str:
    tokens = story.tokens
    extra = [
        (tokens.found_later, "found when it went on"),
        (tokens.recomputed, "computed again"),
        (tokens.beyond, "computed past the end" if story.is_over else "in flight"),
        (tokens.dropped, "sampled past the end"),
    ]
    said = "".join(f", {count} {what}" for count, what in extra if count)
    return f"positions: {tokens.cached} cached, {tokens.computed} computed{said}"


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:,.1f} ms"
