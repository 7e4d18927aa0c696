"""What /stats shows: the last answer, the chat so far, the engine, how answers are sampled."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields

from ...messages import Delta, SamplingParams
from .status import seconds

Row = tuple[str, str]


@dataclass(slots=True)
class ChatStats:
    """Counts over the answers of one chat."""

    last: Delta | None = None  # the final delta of the last answer
    answers: int = 0
    completion_tokens: int = 0

    def record(self, final: Delta) -> None:
        self.last = final
        self.answers += 1
        self.completion_tokens += final.usage.completion_tokens if final.usage else 0

    def rows(self) -> Iterator[Row]:
        if self.last is None:
            yield "last answer", "none yet"
            return
        yield from answer_rows(self.last)
        yield "chat", f"{self.answers} answers, {self.completion_tokens} tokens"


def answer_rows(final: Delta) -> Iterator[Row]:
    """What the last delta of an answer tells."""
    usage, timings = final.usage, final.timings
    if usage is not None:
        cached = f"{usage.cached_tokens} from the prefix cache"
        yield "prompt tokens", f"{usage.prompt_tokens}, {cached}"
        yield "answer tokens", f"{usage.completion_tokens}, ended by {final.finish_reason}"
    if timings is not None and timings.ttft_s is not None and timings.prefill_s is not None:
        parts = f"queue {seconds(timings.queue_s)}, prefill {seconds(timings.prefill_s)}"
        yield "time to first token", f"{seconds(timings.ttft_s)}: {parts}"
    if usage is not None and timings is not None and timings.decode_s > 0:
        rate = (usage.completion_tokens - 1) / timings.decode_s
        yield "speed after it", f"{rate:.1f} tokens/s"


def engine_row(values: Mapping[str, object]) -> Row:
    return "engine", ", ".join(f"{name} {_short(value)}" for name, value in values.items())


def sampling_rows(params: SamplingParams, defaults: SamplingParams) -> Iterator[Row]:
    """How answers are sampled, and what the model recommends where that differs."""
    yield "sampling", _unlike(params, SamplingParams()) or "temperature 1, nothing cut off"
    if params != defaults:
        recommended = _unlike(defaults, SamplingParams()) or "temperature 1, nothing cut off"
        yield "the model recommends", recommended
    else:
        yield "", "as the model recommends"


def _unlike(params: SamplingParams, base: SamplingParams) -> str:
    values, literal = asdict(params), asdict(base)
    changed = (f.name for f in fields(params) if values[f.name] != literal[f.name])
    return ", ".join(f"{name} {_short(values[name])}" for name in changed)


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
