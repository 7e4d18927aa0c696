"""What the engine did for the last answer: as a timeline and in words."""

from ..render import table
from .conversation import Chat
from .gantt import Bar, gantt
from .look import terminal_size
from .stats import answer_rows


async def timeline(chat: Chat) -> str:
    assert chat.asked is not None
    final = chat.asked.final
    assert final.timings is not None
    timings = final.timings
    first = timings.total_s if timings.ttft_s is None else timings.ttft_s
    bars = [Bar("queue", 0, timings.queue_s), Bar("prefill", timings.queue_s, first)]
    if timings.ttft_s is not None:
        bars.append(Bar("decode", first, first + timings.decode_s))
    return gantt(bars, timings.total_s, columns=terminal_size().columns)


async def explained(chat: Chat) -> str:
    """What is known of the last answer."""
    assert chat.asked is not None
    final = chat.asked.final
    rows = list(answer_rows(final))
    account = None if final.usage is None else final.usage.prefix
    if account is not None:
        rows.insert(1, ("prefix", f"ended because what comes next was {account.end}"))
    return table(rows).rstrip("\n")
