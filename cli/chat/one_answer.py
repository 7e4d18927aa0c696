"""One quiet answer, in a pipe or to a PROMPT: the text, or what happens as JSON lines."""

from typing import TYPE_CHECKING

from ...actors.chat_options import ChatWords
from ...actors.collecting import Collected
from ...messages import Delta, FinishReason, RequestFailed, SamplingParams
from ..logprob_fields import position_fields
from ..logprobs import ToldTokens
from ..output import write, write_answer, write_json
from ..render import part_fields, result_fields
from .session import Message

if TYPE_CHECKING:
    from ...actors.engine import Engine


async def answer_text(
    engine: "Engine", messages: list[Message], params: SamplingParams, words: ChatWords
) -> None:
    """Show the answer as it comes. Raises RequestFailed where it fails on the way."""
    told = ToldTokens()
    async for delta in engine.stream_chat(messages, params, **words):
        write_answer(delta.text)
        told.add(delta)
        _check(delta)
    write("\n" + told.tables())


async def answer_events(
    engine: "Engine", messages: list[Message], params: SamplingParams, words: ChatWords
) -> None:
    """An object a line: `start`, a `delta` for each piece, and `end` with the whole answer."""
    facts = engine.facts
    start = {"model": facts.model, "device": facts.device, "context": facts.max_model_len}
    write_json({"event": "start", **start})
    collected = Collected()
    async for delta in engine.stream_chat(messages, params, **words):
        collected.add(delta)
        if delta.text or delta.token_ids:
            write_json({"event": "delta", **_fields(delta)})
        _check(delta)
    write_json({"event": "end", **result_fields(collected.result())})


def _fields(delta: Delta) -> dict[str, object]:
    told = delta.logprobs
    return {
        **({"index": delta.index} if delta.index else {}),
        "text": delta.text,
        "token_ids": list(delta.token_ids),
        "parts": [part_fields(part) for part in delta.parts],
        **({} if told is None else {"logprobs": [position_fields(one) for one in told]}),
    }


def _check(delta: Delta) -> None:
    if delta.finish_reason is FinishReason.ERROR:
        raise RequestFailed(str(delta.stop_reason))
