"""The commands that ask the engine, or change what answers and how."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace

from ...actors.config import EngineConfig
from ...actors.engine import Engine
from ...actors.story import tell
from ...messages import SamplingParams, StructuredOutput
from ..bench.process import peak_memory_mb
from ..mistake import Mistake
from ..render import table
from ..runner import progress
from ..terminal_size import terminal_size
from .conversation import Chat
from .gantt import gantt
from .settings import NAMES
from .stats import Row, engine_row, sampling_rows
from .story import bars


async def set_value(chat: Chat, words: str) -> None:
    """NAME VALUE sets, NAME shows, nothing shows all."""
    name, _, text = words.partition(" ")
    recommended = chat.engine.default_params
    if text.strip():
        chat.settings.choose(name, text.strip(), recommended)
    elif name not in ("", *NAMES):
        raise Mistake(f"there is no setting {name!r}; /set lists what there is")
    params, shown = chat.params, [name] if name else NAMES
    rows = [(key, _shown(getattr(params, key)), _source(chat, key)) for key in shown]
    chat.say(table(rows).rstrip("\n"))


def _shown(value: object) -> str:
    """A value as it would be typed."""
    return "none" if value is None else json.dumps(value, default=_as_json)


def _as_json(value: object) -> object:
    if isinstance(value, StructuredOutput):
        return value.as_json
    return dict(value) if isinstance(value, Mapping) else str(value)


def _source(chat: Chat, name: str) -> str:
    """Who said so, where it is not the default."""
    if name in chat.settings.chosen:
        return "by /set"
    value, model = getattr(chat.params, name), getattr(chat.engine.default_params, name)
    if value != model:
        return "by an option"
    return "" if value == getattr(SamplingParams(), name) else "as the model recommends"


async def show_stats(chat: Chat, _: str) -> None:
    chat.say(table(_stats(chat)).rstrip("\n"))


async def show_timeline(chat: Chat, _: str) -> None:
    if chat.asked is None:
        chat.say("There is no answer yet.")
        return
    story = await chat.engine.explain(chat.asked.request_id)
    total_s = (story.end_ns - story.begin_ns) / 1e9
    chat.say(gantt(bars(story), total_s, columns=terminal_size().columns))


async def explain(chat: Chat, _: str) -> None:
    if chat.asked is None:
        chat.say("There is no answer yet.")
        return
    chat.say(tell(await chat.engine.explain(chat.asked.request_id)).rstrip("\n"))


async def use_model(chat: Chat, name: str) -> None:
    """Load another model and go on with it; where that fails all stays as it is."""
    facts = chat.engine.facts
    if not name:
        chat.say(
            f"{facts.model} on {facts.device} in {facts.dtype}, context {facts.max_model_len:,}"
        )
        return
    # The recording and the socket are the first engine's.
    config = replace(chat.config, model=name, record=None, stats_socket=None)
    engine = await _loaded(config)
    await chat.use(engine, config)
    facts = engine.facts
    chat.say(f"{facts.model} on {facts.device} in {facts.dtype} goes on with the conversation.")


async def _loaded(config: EngineConfig) -> Engine:
    """A started engine. Who is cancelled does not wait for the thread that loads."""
    engine = Engine(config)
    starting = asyncio.ensure_future(engine.start())
    try:
        with progress(f"loading {config.model}"):
            await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(lambda done: done.cancelled() or done.exception())
        await engine.close()
        raise
    return engine


def _stats(chat: Chat) -> Iterator[Row]:
    engine = chat.engine
    yield from chat.stats.rows()
    yield from sampling_rows(chat.params, engine.default_params)
    yield engine_row(asdict(engine.stats()))
    peak = peak_memory_mb()
    if peak is not None:
        yield "memory", f"{peak:,} MB at most so far"
