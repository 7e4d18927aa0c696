"""What the benchmarks ask for: the same requests on every machine, new ids in every run."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

SINGLE_PROMPT, SINGLE_OUTPUT = 150, 100
PROMPT_BOUNDS, OUTPUT_BOUNDS = (16, 512), (16, 256)
_SHAPE_SEED, _IDS_SEED = 1, 2


@dataclass(frozen=True, slots=True)
class Job:
    """One request: a prompt of random ids, and how many tokens to make of it."""

    prompt: tuple[int, ...]
    output_tokens: int


def single_job(vocab_size: int, run: int, *, longest: int) -> Job:
    """One request of the batch's average shape."""
    prompt, output = _fit(SINGLE_PROMPT, SINGLE_OUTPUT, longest)
    return Job(_ids(np.random.default_rng((_IDS_SEED, run)), prompt, vocab_size), output)


def batch_jobs(count: int, vocab_size: int, run: int, *, longest: int) -> list[Job]:
    """Requests whose lengths are log-normal and the same in each run; their ids are not.

    So no run finds its prompts in the prefix cache of an earlier one.
    """
    shapes = np.random.default_rng(_SHAPE_SEED)
    prompts = _lengths(shapes, count, mean=150, sigma=0.7, bounds=PROMPT_BOUNDS)
    outputs = _lengths(shapes, count, mean=100, sigma=0.6, bounds=OUTPUT_BOUNDS)
    ids = np.random.default_rng((_IDS_SEED, run))
    fitted = [_fit(p, o, longest) for p, o in zip(prompts, outputs, strict=True)]
    return [Job(_ids(ids, prompt, vocab_size), output) for prompt, output in fitted]


def _lengths(
    random: Generator, count: int, *, mean: float, sigma: float, bounds: tuple[int, int]
) -> list[int]:
    drawn = random.lognormal(math.log(mean) - sigma**2 / 2, sigma, count)
    return [int(length) for length in np.clip(np.rint(drawn), *bounds)]


def _fit(prompt: int, output: int, longest: int) -> tuple[int, int]:
    """Both lengths, made smaller where the model's context is too short for them."""
    prompt = max(1, min(prompt, longest - output, longest // 2))
    return prompt, max(1, min(output, longest - prompt))


def _ids(random: Generator, count: int, vocab_size: int) -> tuple[int, ...]:
    return tuple(int(token) for token in random.integers(0, vocab_size, count))
