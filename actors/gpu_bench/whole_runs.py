"""R1, R2, R5, R7 and R8: whole workloads through a whole engine."""

import asyncio
import math
from collections.abc import Iterator

import numpy as np

from ...gpu.roofline import (
    Length,
    batch_s,
    decode_step_s,
    prefill_s,
    shared_step_s,
    steady_tokens_per_s,
)
from .figure import Figure, LeftOut
from .opened import OpenShape
from .requests import Asked, equal, mixed, num_outputs, samples
from .serving import TEMPERATURE, Served, ask, serve, warm_up

_TURN = 16  # tokens of an answer between two turns
_FULL = 1.5  # times as many requests as run at once, at least
_LIKELY = 0.5  # of the floor, that a run is expected to reach at least


def mixed_batch(shape: OpenShape, *, steps_in_flight: int = 2, note: str = "") -> Iterator[Figure]:
    """R1: nano-vllm's benchmark."""
    sizes = shape.sizes
    asked = mixed(sizes.mixed, sizes.mixed_bounds, shape.device.facts.vocab_size)
    served = asyncio.run(_served(shape, asked, steps_in_flight=steps_in_flight))
    floor = batch_s(shape.cost, shape.rates, [one.length for one in asked])
    what = f"{shape.name}, {len(asked)} requests{note}"
    yield _throughput("R1", what, served, num_outputs(asked) / floor)


def mixed_seconds(shape: OpenShape) -> float:
    """How long `mixed_batch` may take."""
    asked = mixed(shape.sizes.mixed, shape.sizes.mixed_bounds, shape.device.facts.vocab_size)
    return batch_s(shape.cost, shape.rates, [one.length for one in asked]) / _LIKELY


def equal_batch(shape: OpenShape, output: int) -> Iterator[Figure]:
    """R2: answers of one length."""
    asked = _equal(shape, output)
    served = asyncio.run(_served(shape, asked, temperature=0.0))
    floor = batch_s(shape.cost, shape.rates, [one.length for one in asked])
    yield Figure(
        run="R2",
        what=f"{shape.name}, {len(asked)} answers of {output:,}",
        name="wall_s",
        value=served.seconds,
        floor=floor,
        about={"tok_s": round(served.tokens_per_s)},
    )


def equal_seconds(shape: OpenShape, output: int) -> float:
    """How long `equal_batch` may take."""
    lengths = [one.length for one in _equal(shape, output)]
    return batch_s(shape.cost, shape.rates, lengths) / _LIKELY


def _equal(shape: OpenShape, output: int) -> list[Asked]:
    sizes = shape.sizes
    return equal(sizes.equal, sizes.equal_prompt, output, shape.device.facts.vocab_size)


def full_server(shape: OpenShape, seconds: float) -> Iterator[Figure | LeftOut]:
    """R5: as many requests as are likely to be served in that time, the engine always full."""
    sizes, facts = shape.sizes, shape.device.facts
    length = Length(sizes.full_length, sizes.full_length)
    blocks = math.ceil((length.prompt + length.output) / facts.block_size)
    rows = max(min(sizes.full_rows, facts.num_blocks // blocks), 1)
    floor = steady_tokens_per_s(shape.cost, shape.rates, length, rows)
    count = min(sizes.full, int(seconds * _LIKELY * floor / length.output))
    if count < _FULL * rows:
        why = f"in {max(seconds, 0):.0f} s it would serve about {count}, and {rows} run at once"
        yield LeftOut("R5", why)
        return
    asked = equal(count, length.prompt, length.output, facts.vocab_size)
    served = asyncio.run(_served(shape, asked, max_num_seqs=rows))
    what = f"{shape.name}, {count:,} x {length.prompt:,} in, {length.output:,} out, {rows} at once"
    yield _throughput("R5", what, served, floor)


def second_turn(shape: OpenShape, tokens: int) -> Iterator[Figure | LeftOut]:
    """R7: the first token of a long prompt, and of the next turn, which begins with all of it."""
    longest = shape.device.facts.max_model_len - 4 * _TURN
    if tokens > longest:
        yield LeftOut("R7", f"a prompt of {tokens:,}: the KV memory holds {longest:,}")
        return
    cold_s, warm_s = asyncio.run(_turns(shape, tokens))
    cold = prefill_s(shape.cost, shape.rates, tokens)
    step = decode_step_s(shape.cost, shape.rates, 1, tokens)
    warm = max(step, prefill_s(shape.cost, shape.rates, 2 * _TURN, cached=tokens))
    for turn, seconds, floor in (("first", cold_s, cold), ("second", warm_s, warm)):
        yield Figure(
            run="R7",
            what=f"{shape.name}, {turn} turn on {tokens:,} tokens",
            name="first_token_ms",
            value=1e3 * seconds,
            floor=1e3 * floor,
            about={} if turn == "first" else {"times_faster": round(cold_s / seconds, 1)},
        )


def second_turn_seconds(shape: OpenShape, tokens: int) -> float:
    """How long `second_turn` may take."""
    return prefill_s(shape.cost, shape.rates, tokens) / (_LIKELY / 2)


async def _turns(shape: OpenShape, tokens: int) -> tuple[float, float]:
    draw = np.random.default_rng(tokens)
    vocab = shape.device.facts.vocab_size
    prompt = draw.integers(0, vocab, tokens).tolist()
    async with shape.engine() as engine:
        await warm_up(engine, min(tokens, shape.sizes.max_num_batched_tokens) // 2)
        first = await ask(engine, prompt, _TURN)
        more = draw.integers(0, vocab, _TURN).tolist()
        second = await ask(engine, [*prompt, *first.token_ids, *more], _TURN)
    assert first.timings.ttft_s is not None
    assert second.timings.ttft_s is not None
    return first.timings.ttft_s, second.timings.ttft_s


def many_samples(shape: OpenShape) -> Iterator[Figure]:
    """R8: many answers to prompts that begin alike."""
    sizes = shape.sizes
    asked = samples(
        sizes.sampled_prompts,
        sizes.sampled_answers,
        shared=sizes.sampled_shared,
        own=sizes.sampled_own,
        output=sizes.sampled_output,
        vocab_size=shape.device.facts.vocab_size,
    )
    served = asyncio.run(_served(shape, asked))
    what = f"{shape.name}, {sizes.sampled_prompts} x {sizes.sampled_answers} samples"
    yield _throughput("R8", what, served, num_outputs(asked) / samples_floor_s(shape))


def samples_floor_s(shape: OpenShape) -> float:
    """Of `many_samples`: the common beginning is read once a step, and the rest by each row."""
    sizes = shape.sizes
    total = sizes.sampled_prompts * sizes.sampled_answers
    rows = min(shape.max_num_seqs, total)
    own = sizes.sampled_own + sizes.sampled_output // 2
    step = shared_step_s(
        shape.cost, shape.rates, rows, shared=sizes.sampled_shared, groups=1, own=own
    )
    return math.ceil(total / rows) * sizes.sampled_output * step


def samples_seconds(shape: OpenShape) -> float:
    """How long `many_samples` may take."""
    return samples_floor_s(shape) / (_LIKELY / 2)


async def _served(
    shape: OpenShape,
    asked: list[Asked],
    *,
    steps_in_flight: int = 2,
    max_num_seqs: int | None = None,
    temperature: float = TEMPERATURE,
) -> Served:
    engine_of = shape.engine(steps_in_flight=steps_in_flight, max_num_seqs=max_num_seqs)
    async with engine_of as engine:
        await warm_up(engine, max(len(one.prompt) for one in asked))
        return await serve(engine, asked, temperature=temperature)


def _throughput(run: str, what: str, served: Served, floor: float) -> Figure:
    return Figure(
        run=run,
        what=what,
        name="out_tok_s",
        value=served.tokens_per_s,
        floor=floor,
        about={"wall_s": round(served.seconds, 2), "cpu_s": round(served.cpu_s, 2)},
    )
