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
) -> int:
    """Drop turns until `messages` leave room for an answer; returns how many were dropped.

    When one has to go, as many go as leave half the context free: every drop changes the beginning
    of the prompt, and what the prefix cache knew of it. The last question always stays.
    """
    room = min(max_tokens or context, context // MIN_SHARE)
    limit = context - room
    before = session.num_dropped
    while session.num_dropped < len(session.exchanges) and await count(messages()) > limit:
        session.num_dropped += 1
        limit = min(limit, context // 2)
    return session.num_dropped - before
