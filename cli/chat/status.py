"""The line after an answer: what it cost, how fast it came, why it ended."""

from collections.abc import Iterator

from ...messages import Delta, FinishReason, SamplingParams

BETWEEN = " · "


def status_line(final: Delta, params: SamplingParams, context: int) -> str:
    """From the last delta of an answer; `context` is how many tokens fit into it."""
    return BETWEEN.join(_parts(final, params, context))


def _parts(final: Delta, params: SamplingParams, context: int) -> Iterator[str]:
    usage, timings = final.usage, final.timings
    assert usage is not None
    assert timings is not None
    yield f"{usage.completion_tokens} token{'s' * (usage.completion_tokens != 1)}"
    if timings.decode_s > 0:
        yield f"{(usage.completion_tokens - 1) / timings.decode_s:.1f} tok/s"
    if timings.ttft_s is not None:
        yield f"first after {seconds(timings.ttft_s)}"
    yield f"cached {usage.cached_tokens} of {usage.prompt_tokens}"
    filled = usage.prompt_tokens + usage.completion_tokens
    yield f"context {filled / context:.0%} of {context:,}"
    yield ending(final, params)


def ending(final: Delta, params: SamplingParams) -> str:
    """Why an answer ended, in words."""
    match final.finish_reason:
        case FinishReason.ABORT:
            return "stopped"
        case FinishReason.LENGTH:
            assert final.usage is not None
            is_limit = final.usage.completion_tokens == params.max_tokens
            return "cut off at max_tokens" if is_limit else "cut off: the context is full"
        case FinishReason.TIMEOUT:
            return "out of time"
        case FinishReason.ERROR:
            return f"failed: {final.stop_reason}"
        case _:
            return "stop"


def seconds(duration: float) -> str:
    """A time as people read it."""
    if duration >= 1:
        return f"{duration:.2f} s"
    milliseconds = duration * 1000
    return f"{milliseconds:.1f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"
