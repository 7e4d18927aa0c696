"""A timeline as Chrome trace events, which Perfetto (ui.perfetto.dev) opens. Pure.

Actors, device, slots and those that wait are processes; their tracks are threads. Times are
microseconds since the log began.
"""

from collections.abc import Iterator
from typing import Any

from .timeline import ACTORS, DEVICE, WAITING, Flow, Span, Timeline

ACTOR_PID, DEVICE_PID, SLOT_PID, REQUEST_PID, COUNTER_PID = range(1, 6)
_PROCESSES = {
    ACTOR_PID: "actors",
    DEVICE_PID: "device",
    SLOT_PID: "slots",
    REQUEST_PID: "requests",
    COUNTER_PID: "counters",
}


def trace_events(timeline: Timeline) -> dict[str, Any]:
    """The whole file, for JSON."""
    return {"displayTimeUnit": "ms", "traceEvents": list(_Events(timeline).all())}


class _Events:
    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def all(self) -> Iterator[dict[str, Any]]:
        for pid, name in _PROCESSES.items():
            yield _metadata("process_name", pid, 0, name=name)
            yield _metadata("process_sort_index", pid, 0, sort_index=pid)
        for track in self._timeline.tracks:
            pid, tid = _place(track)
            yield _metadata("thread_name", pid, tid, name=track)
            yield _metadata("thread_sort_index", pid, tid, sort_index=tid)
        for number, span in enumerate(self._timeline.spans):
            yield from self._waiting(span, number) if span.track == WAITING else self._slice(span)
        for flow in self._timeline.flows:
            yield from self._arrow(flow)
        for count in self._timeline.counts:
            yield {
                "ph": "C",
                "name": count.name,
                "pid": COUNTER_PID,
                "ts": self._us(count.t_ns),
                "args": {count.name: count.value},
            }

    def _slice(self, span: Span) -> Iterator[dict[str, Any]]:
        pid, tid = _place(span.track)
        yield {
            "ph": "X",
            "name": span.name,
            "cat": _PROCESSES[pid],
            "pid": pid,
            "tid": tid,
            "ts": self._us(span.begin_ns),
            "dur": self._us(span.end_ns) - self._us(span.begin_ns),
            "args": span.about,
        }

    def _waiting(self, span: Span, number: int) -> Iterator[dict[str, Any]]:
        """Those that wait overlap, so each is an asynchronous slice of its own."""
        about = {"name": f"{span.name} waits", "cat": WAITING, "pid": REQUEST_PID, "tid": 0}
        for phase, t_ns in (("b", span.begin_ns), ("e", span.end_ns)):
            yield {"ph": phase, "id": number, "ts": self._us(t_ns), "args": span.about, **about}

    def _arrow(self, flow: Flow) -> Iterator[dict[str, Any]]:
        about = {"name": "runs first in", "cat": "request", "id": flow.serial}
        pid, tid = _place("intake")
        yield {"ph": "s", "pid": pid, "tid": tid, "ts": self._us(flow.arrived_ns), **about}
        pid, tid = _place(flow.track)
        yield {"ph": "f", "bp": "e", "pid": pid, "tid": tid, "ts": self._us(flow.began_ns), **about}

    def _us(self, t_ns: int) -> float:
        return (t_ns - self._timeline.begin_ns) / 1e3


def _place(track: str) -> tuple[int, int]:
    """The process and thread of a track."""
    if track in ACTORS:
        return ACTOR_PID, ACTORS.index(track)
    if track == DEVICE:
        return DEVICE_PID, 0
    return SLOT_PID, int(track.removeprefix("slot "))


def _metadata(what: str, pid: int, tid: int, **about: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": about}
