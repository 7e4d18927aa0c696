"""One quiet answer, in a pipe or to a PROMPT: the text, or what happens as JSON lines."""

from typing import TYPE_CHECKING

from ...messages import Delta, FinishReason, Output, RequestFailed, Result, SamplingParams
from ..output import write, write_answer, write_json
from ..render import result_fields
from .session import Message

if TYPE_CHECKING:
    from ...actors.engine import Engine


async def answer_text(engine: "Engine", messages: list[Message], params: SamplingParams) -> None:
    """Show the answer as it comes. Raises RequestFailed where it fails on the way."""
    async for delta in engine.stream_chat(messages, params):
        write_answer(delta.text)
        _check(delta)
    write("\n")


async def answer_events(engine: "Engine", messages: list[Message], params: SamplingParams) -> None:
    """An object a line: `start`, a `delta` for each piece, and `end` with the whole answer."""
    facts = engine.facts
    start = {"model": facts.model, "device": facts.device, "context": facts.max_model_len}
    write_json({"event": "start", **start})
    deltas: list[Delta] = []
    async for delta in engine.stream_chat(messages, params):
        deltas.append(delta)
        if delta.text or delta.token_ids:
            write_json({"event": "delta", "text": delta.text, "token_ids": list(delta.token_ids)})
        _check(delta)
    write_json({"event": "end", **result_fields(_result(deltas))})


def _check(delta: Delta) -> None:
    if delta.finish_reason is FinishReason.ERROR:
        raise RequestFailed(str(delta.stop_reason))


def _result(deltas: list[Delta]) -> Result:
    last = deltas[-1]
    assert last.finish_reason is not None
    assert last.usage is not None
    assert last.timings is not None
    token_ids = tuple(token_id for delta in deltas for token_id in delta.token_ids)
    text = "".join(delta.text for delta in deltas)
    output = Output(last.index, text, token_ids, last.finish_reason, last.stop_reason)
    return Result(last.request_id, (output,), last.usage, last.timings)
