"""The requests of each run: prompts of token ids, and how long their answers are. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...gpu.roofline import Length


@dataclass(frozen=True, slots=True)
class Asked:
    """One request; its answer has just that many tokens."""

    prompt: tuple[int, ...]
    output: int
    answers: int = 1  # to the same prompt

    @property
    def length(self) -> Length:
        return Length(len(self.prompt), self.output)


def mixed(count: int, bounds: tuple[int, int], vocab_size: int) -> list[Asked]:
    """Prompts and answers of lengths drawn evenly, from seed 0.

    256 of them between 100 and 1,024 are the requests that nano-vllm's benchmark makes, and with it
    mini-sglang's: 142,827 tokens in and 133,966 out.
    """
    draw = random.Random(0)
    largest = min(10_000, vocab_size - 1)
    prompts = [
        tuple(draw.randint(0, largest) for _ in range(draw.randint(*bounds))) for _ in range(count)
    ]
    return [Asked(prompt, draw.randint(*bounds)) for prompt in prompts]


def equal(count: int, prompt: int, output: int, vocab_size: int, *, seed: int = 0) -> list[Asked]:
    """Prompts of one length that have nothing in common, and answers of one length."""
    ids = np.random.default_rng(seed).integers(0, vocab_size, (count, prompt)).tolist()
    return [Asked(tuple(row), output) for row in ids]


def samples(
    prompts: int, answers: int, *, shared: int, own: int, output: int, vocab_size: int
) -> list[Asked]:
    """Prompts that begin with the same `shared` tokens and go on with `own` of theirs, each to be
    answered many times."""
    draw = np.random.default_rng(0)
    beginning = tuple(draw.integers(0, vocab_size, shared).tolist())
    return [
        Asked(beginning + tuple(draw.integers(0, vocab_size, own).tolist()), output, answers)
        for _ in range(prompts)
    ]


def num_outputs(asked: Sequence[Asked]) -> int:
    """Tokens of all answers."""
    return sum(one.output * one.answers for one in asked)
