"""The last answer as a timeline, from the story that the engine tells of it."""

from collections.abc import Iterator

from ...actors.story.story import Cause, Chunk, Phase, Stall, Story
from .gantt import Bar

MOST_CHUNKS = 8
MOST_STALLS = 4
_WORDS = {Cause.DEVICE: "a step ran", Cause.HOST: "the host was late", Cause.STEP: "a step before"}


def bars(story: Story) -> list[Bar]:
    """Its phases, under them the chunks of its prompt, and the longest stalls."""
    shown = [span for span in story.phases if span.phase is not Phase.FORGOTTEN]
    drawn = []
    for span in shown:
        name = str(span.phase)
        drawn.append(_bar(story, name, span.begin_ns, span.end_ns))
        if span.phase in (Phase.PREFILL, Phase.RECOMPUTE):
            drawn += _chunks(story, span.begin_ns, span.end_ns)
    return drawn + list(_stalls(story))


def _chunks(story: Story, begin_ns: int, end_ns: int) -> list[Bar]:
    """While the device was at each."""
    drawn = [
        _bar(story, " chunk", chunk.began_ns, chunk.done_ns or story.end_ns, _of_chunk(chunk))
        for chunk in story.events
        if isinstance(chunk, Chunk) and begin_ns <= chunk.t_ns < end_ns
    ]
    if len(drawn) <= MOST_CHUNKS:
        return drawn
    left = len(drawn) - MOST_CHUNKS + 1
    rest = Bar(" chunks", drawn[-left].start, drawn[-1].end, f"{left} more")
    return [*drawn[:-left], rest]


def _of_chunk(chunk: Chunk) -> str:
    beside = f", beside {len(chunk.mates)}" if chunk.mates else ""
    return f"{chunk.length:,} token{'s' * (chunk.length != 1)}{beside}"


def _stalls(story: Story) -> Iterator[Bar]:
    stalls = [event for event in story.events if isinstance(event, Stall)]
    longest = sorted(stalls, key=lambda stall: stall.begin_ns - stall.t_ns)[:MOST_STALLS]
    for stall in sorted(longest, key=lambda stall: stall.t_ns):
        why = max(stall.causes, key=lambda wait: wait.end_ns - wait.begin_ns, default=None)
        said = "" if why is None else why.detail or _WORDS.get(why.cause, str(why.cause))
        yield _bar(story, "stall", stall.begin_ns, stall.t_ns, f"token {stall.token}: {said}")


def _bar(story: Story, name: str, begin_ns: int, end_ns: int, remark: str = "") -> Bar:
    start = story.begin_ns
    return Bar(name, (begin_ns - start) / 1e9, (end_ns - start) / 1e9, remark)
