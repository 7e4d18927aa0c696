"""What of a conversation fits into the context: the oldest turns go first, and whole."""

from collections.abc import Awaitable, Callable

from .session import Message, Session

MIN_SHARE = 4  # an answer has room for this part of the context, unless less is asked for

Count = Callable[[list[Message]], Awaitable[int]]


async def make_room(
    session: Session,
    messages: Callable[[], list[Message]],
    count: Count,
    *,
    context: int,
    max_tokens: int | None,
    num_kept: int = 0,
) -> int:
    """Drop turns until `messages` leave room for an answer; returns how many were dropped.

    When one has to go, as many go as leave half the context free: every drop changes the beginning
    of the prompt, and what the prefix cache knew of it. A new question always stays, and so do the
    last `num_kept` turns. Where even that is too much, nothing is dropped: it will be refused.
    """
    limit = context - min(max_tokens or context, context // MIN_SHARE)
    before, most = session.num_dropped, len(session.exchanges) - num_kept
    fits = False
    try:
        size = await count(messages())
        while size > limit and session.num_dropped < most:
            session.num_dropped += 1
            limit = min(limit, context // 2)
            size = await count(messages())
        fits = size < context
    finally:
        if not fits:
            session.num_dropped = before
    return session.num_dropped - before
