"""From a recording to its stories and its timeline."""

from ...messages import RequestRejected
from ..story import Chronicle, Story, Timeline, explain, timeline
from .reading import Recording


def chronicle_of(recording: Recording) -> Chronicle:
    """Everything that a recording says, in relation."""
    return Chronicle((*recording.begun, *recording.turns), recording.opening)


def timeline_of(recording: Recording) -> Timeline:
    """What ran where and when."""
    return timeline(recording.turns, chronicle_of(recording))


def explain_request(
    recording: Recording, request: str, *, index: int = 0, stall_s: float | None = None
) -> Story:
    """The story of a request, named by its caller's id (and the index of one of its answers) or by
    the engine's serial.

    Raises RequestRejected where the recording says nothing of it.
    """
    chronicle = chronicle_of(recording)
    serial = chronicle.of(request, index)
    if serial is None and not index and request.isdecimal() and int(request) in chronicle.requests:
        serial = int(request)
    if serial is None:
        what = f"answer {index} of a request {request!r}" if index else f"a request {request!r}"
        ids = [chronicle.name(known) for known in list(chronicle.requests)[-3:]]
        known = f"the last it knows are {', '.join(ids)}" if ids else "it knows of none"
        raise RequestRejected(f"the log says nothing of {what}; {known}")
    return explain(chronicle, serial, recording.header.setup.limits, stall_s=stall_s)
