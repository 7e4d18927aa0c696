"""The log: one canonical line per finished answer, and what led to it as debug events. Where a
request wants several answers, each has its line, and its index tells which it is.

The library configures nothing: it writes through structlog where the program that embeds it has
configured structlog, and is silent otherwise. No prompt or answer is ever logged.
"""

import logging
import sys
from collections.abc import Callable
from typing import Any

from ..gpu.device import Device
from ..messages import (
    Finished,
    Generate,
    Message,
    PrefixAccount,
    StepDone,
    StepFailed,
    StepPlan,
    TokensReady,
)
from .journal import Envelope, Journal, Turn
from .stats import EngineStats


class RequestLog:
    """Writes the events of one engine, each with its model's name.

    A logger that raises (a full disk, a broken processor) ends the log and not the engine.
    """

    def __init__(self, device: Device) -> None:
        self._device = device  # which may load another model
        self._model: str | None = None  # what the logger is bound to
        self._log = _configured_logger()
        self._stats: Callable[[], EngineStats] | None = None  # where debug events are read
        self._of: dict[int, Any] = {}  # by live request, where debug events are read: its logger

    def attach(self, journal: Journal, stats: Callable[[], EngineStats]) -> None:
        """Follow the messages of an engine, if anybody reads debug events."""
        if self._log is not None and self._reads_debug():
            self._stats = stats
            journal.attach(self._note)

    def _reads_debug(self) -> bool:
        is_enabled_for = getattr(self._log, "is_enabled_for", None)
        return is_enabled_for is None or bool(is_enabled_for(logging.DEBUG))

    def finished(self, done: Finished) -> None:
        """The canonical line of an answer."""
        self._try(self._write_finished, done)

    def _try(self, write: Callable[..., None], *arguments: object) -> None:
        if self._log is None:
            return
        try:
            if self._model != self._device.facts.model:
                self._model = self._device.facts.model
                self._log = self._log.bind(model=self._model)
            write(*arguments)
        except Exception:  # whatever the program's own logger raises
            self._log = None
            logging.getLogger(__name__).exception("structlog raised; this engine logs no more")

    def _write_finished(self, done: Finished) -> None:
        usage, timings = done.usage, done.timings
        self._log.info(
            "request.finished",
            request_id=done.request_id,
            serial=done.serial,
            index=done.index,
            finish_reason=str(done.finish_reason),
            stop_reason=done.stop_reason,
            n_prompt=usage.prompt_tokens,
            n_cached=usage.cached_tokens,
            **_account(usage.prefix),
            n_generated=usage.completion_tokens,
            queue_ms=_ms(timings.queue_s),
            prefill_ms=_ms(timings.prefill_s),
            ttft_ms=_ms(timings.ttft_s),
            decode_ms=_ms(timings.decode_s),
            gap_p50_ms=_ms(timings.gap_p50_s),
            gap_p99_ms=_ms(timings.gap_p99_s),
            total_ms=_ms(timings.total_s),
            preemptions=timings.preemptions,
        )

    def _note(self, actor: str, turn: Turn[Message]) -> None:
        for envelope in turn.envelopes:
            self._try(self._write, actor, turn.number, envelope)

    def _write(self, actor: str, turn: int, envelope: Envelope[Message]) -> None:
        common = {"actor": actor, "turn": turn, "seq": envelope.seq, "t_ns": envelope.t_ns}
        match envelope.message:
            case Generate() as request if actor == "scheduler":
                log = self._log.bind(
                    request_id=request.request_id, serial=request.serial, index=request.index
                )
                self._of[request.serial] = log
                log.debug(
                    "request.received",
                    n_prompt=len(request.prompt),
                    priority=request.priority,
                    **common,
                )
            case StepPlan() as plan:
                self._note_step(plan, common)
            case StepDone() as done:
                self._log.debug("step.done", step=done.step, failed=len(done.failed), **common)
            case StepFailed() as failed:
                self._log.warning("step.failed", step=failed.step, error=failed.error, **common)
            case TokensReady() as report:
                self._note_report(report, common)
            case _:
                pass

    def _note_step(self, plan: StepPlan, common: dict[str, Any]) -> None:
        assert self._stats is not None
        stats = self._stats()
        self._log.debug(
            "step.posted",
            step=plan.step,
            rows=len(plan.slots),
            tokens=plan.num_tokens,
            new_rows=len(plan.new_rows),
            queue_len=stats.waiting,
            blocks_used=stats.blocks_held,
            blocks_free=stats.blocks_free,
            **common,
        )

    def _note_report(self, report: TokensReady, common: dict[str, Any]) -> None:
        for admitted in report.admitted:
            self._of[admitted.serial].debug(
                "request.admitted",
                n_cached=admitted.cached_tokens,
                **_account(admitted.account),
                **common,
            )
        for preempted in report.preempted:
            self._of[preempted.serial].debug("request.preempted", **common)
        for ended in report.ended:
            log = self._of.pop(ended.serial)
            log.debug("request.ended", finish_reason=str(ended.reason), **common)


def _configured_logger() -> Any:
    """None where nobody has configured structlog, and so also where nobody has imported it: that
    takes a tenth of a start."""
    structlog = sys.modules.get("structlog")
    if structlog is None or not structlog.is_configured():
        return None
    return structlog.get_logger("stepahead")


def _account(account: PrefixAccount | None) -> dict[str, Any]:
    """Why no more of the prompt was found in the prefix cache."""
    if account is None:
        return {"prefix_end": None, "first_difference": None}
    return {"prefix_end": str(account.end), "first_difference": account.first_difference}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)
