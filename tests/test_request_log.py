"""The log: one canonical line per request, silence where nobody configured structlog."""

import asyncio
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from stepahead import SamplingParams
from stepahead.actors.virtual_time import run_virtual

from .engines import make_engine

PARAMS = SamplingParams(max_tokens=5)
FIELDS = {
    "event",
    "log_level",
    "model",
    "request_id",
    "serial",
    "index",
    "finish_reason",
    "stop_reason",
    "n_prompt",
    "n_cached",
    "prefix_end",
    "first_difference",
    "n_generated",
    "queue_ms",
    "prefill_ms",
    "ttft_ms",
    "decode_ms",
    "gap_p50_ms",
    "gap_p99_ms",
    "total_ms",
    "preemptions",
}


COMMON = {"event", "log_level", "model", "actor", "turn", "seq", "t_ns"}
OF_REQUEST = {"request_id", "serial", "index"}
DEBUG_FIELDS = {
    "request.received": OF_REQUEST | {"n_prompt", "priority"},
    "request.admitted": OF_REQUEST | {"n_cached", "prefix_end", "first_difference"},
    "request.preempted": OF_REQUEST,
    "request.ended": OF_REQUEST | {"finish_reason"},
    "step.posted": {"step", "rows", "tokens", "new_rows"}
    | {"queue_len", "blocks_used", "blocks_free"},
    "step.done": {"step", "failed"},
}
"""These names are what queries are built on: they do not change."""


@pytest.fixture(autouse=True)
def configured() -> None:
    structlog.configure()


async def three_requests(**options: Any) -> None:
    async with make_engine(**options) as engine:
        await asyncio.gather(
            engine.generate("one", PARAMS, request_id="a"),
            engine.generate("two", PARAMS, request_id="b"),
            engine.generate("three", PARAMS, request_id="c", deadline=0.025),
        )


def test_every_request_has_one_canonical_line_with_these_fields() -> None:
    with capture_logs() as lines:
        run_virtual(three_requests())

    finished = [line for line in lines if line["event"] == "request.finished"]
    assert sorted(line["request_id"] for line in finished) == ["a", "b", "c"]
    assert all(set(line) == FIELDS for line in finished)
    assert {line["finish_reason"] for line in finished} == {"length", "timeout"}
    assert all(line["log_level"] == "info" for line in finished)


def test_what_led_to_it_is_told_at_debug_with_message_numbers() -> None:
    with capture_logs() as lines:
        run_virtual(three_requests(num_blocks=5, watermark=0.0))

    events = [line for line in lines if line["event"] != "request.finished"]
    assert {line["event"] for line in events} == set(DEBUG_FIELDS)
    assert all(line["log_level"] == "debug" for line in events)
    assert all(set(line) == COMMON | DEBUG_FIELDS[line["event"]] for line in events)
    steps = [line for line in events if line["event"] == "step.posted"]
    assert all(1 <= line["blocks_used"] <= 5 - line["blocks_free"] for line in steps)
    assert {line["queue_len"] for line in steps} >= {0, 1}


def test_the_times_of_a_canonical_line_add_up() -> None:
    with capture_logs() as lines:
        run_virtual(three_requests())

    for line in [line for line in lines if line["event"] == "request.finished"]:
        assert line["queue_ms"] + line["prefill_ms"] == pytest.approx(line["ttft_ms"])
        assert line["ttft_ms"] + line["decode_ms"] <= line["total_ms"] + 0.001
        if line["finish_reason"] == "length":
            assert line["gap_p50_ms"] == line["gap_p99_ms"] == pytest.approx(10)


def test_no_text_of_prompt_or_answer_is_logged() -> None:
    with capture_logs() as lines:
        run_virtual(three_requests())

    assert "three" not in str(lines)


def test_nothing_is_written_where_structlog_is_not_configured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    structlog.reset_defaults()

    run_virtual(three_requests())

    assert capsys.readouterr() == ("", "")


def test_a_logger_that_raises_ends_the_log_and_not_the_engine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: object) -> dict[str, object]:
        raise OSError("no space left on device")

    structlog.configure(processors=[broken])

    run_virtual(three_requests())

    assert [record.message for record in caplog.records] == [
        "structlog raised; this engine logs no more"
    ]
