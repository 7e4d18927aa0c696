"""An opening: how things stood where a stretch of a log begins that is not the whole of it."""

from dataclasses import dataclass

from ..messages import Longs


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """What happened before is not in the log; the messages that are still underway may be."""

    t_ns: int
    seq: int  # the number of the last message that was posted before
    owners: Longs  # by slot: the serial of who had it last, or -1
    running: Longs  # serials
