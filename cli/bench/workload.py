"""What the benchmarks ask for: the same requests on every machine, new ids in every run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.random import Generator

SINGLE_PROMPT, SINGLE_OUTPUT = 150, 100
PROMPT_BOUNDS, OUTPUT_BOUNDS = (16, 512), (16, 256)
SHARED_PREFIX, OWN_PROMPT, SHORT_OUTPUT = 512, 32, 32
STREAMS, STREAM_PROMPT, STREAM_OUTPUT = 8, 64, 160
LONG_PROMPT, LONG_OUTPUT = 1_900, 16
LEAST_STREAM_OUTPUT = 20  # tokens: a shorter stream is over before the long prompt's answer begins
_SHAPE_SEED, _IDS_SEED = 1, 2

Kind = Literal["stream", "batch", "interference"]


@dataclass(frozen=True, slots=True)
class Job:
    """One request: a prompt of token ids, and how many tokens to make of it."""

    prompt: tuple[int, ...]
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests of each run, the warm-up first, and how they arrive.

    stream: one alone. batch: all at once. interference: all but the last, and that one when the
    others have been decoding for a while.
    """

    name: str
    kind: Kind
    runs: Sequence[Sequence[Job]]


@dataclass(frozen=True, slots=True)
class Shapes:
    """Draws the requests of built-in workloads for one model.

    Lengths are the same in each run and ids are not, so no run finds its prompts in the prefix
    cache of an earlier one. Where the model's context is too short they are made smaller.
    """

    vocab_size: int
    longest: int  # positions of a sequence

    def single(self, runs: int) -> Workload:
        """One request of the batch's average shape."""
        prompt, output = self._fit(SINGLE_PROMPT, SINGLE_OUTPUT)
        jobs = [(Job(self._ids(_ids(run), prompt), output),) for run in range(runs)]
        return Workload("single", "stream", jobs)

    def batch(self, runs: int, requests: int) -> Workload:
        """Requests whose lengths are log-normal."""
        return Workload("batch", "batch", [self.mixed(requests, run) for run in range(runs)])

    def mixed(self, requests: int, run: int) -> list[Job]:
        """The batch of one run."""
        lengths = np.random.default_rng(_SHAPE_SEED)
        prompts = _lengths(lengths, requests, mean=150, sigma=0.7, bounds=PROMPT_BOUNDS)
        outputs = _lengths(lengths, requests, mean=100, sigma=0.6, bounds=OUTPUT_BOUNDS)
        ids = _ids(run)
        fitted = [self._fit(p, o) for p, o in zip(prompts, outputs, strict=True)]
        return [Job(self._ids(ids, prompt), output) for prompt, output in fitted]

    def prefix(self, runs: int, requests: int) -> Workload:
        """Requests that begin alike and go on each in its own way."""
        prompt, output = self._fit(SHARED_PREFIX + OWN_PROMPT, SHORT_OUTPUT)
        own = min(OWN_PROMPT, prompt)

        def jobs(run: int) -> list[Job]:
            ids = _ids(run)
            shared = self._ids(ids, prompt - own)
            return [Job(shared + self._ids(ids, own), output) for _ in range(requests)]

        return Workload("prefix", "batch", [jobs(run) for run in range(runs)])

    def interference(self, runs: int) -> Workload:
        """Streams that decode while a long prompt arrives."""
        short, long = self._fit(STREAM_PROMPT, STREAM_OUTPUT), self._fit(LONG_PROMPT, LONG_OUTPUT)

        def jobs(run: int) -> list[Job]:
            ids = _ids(run)
            shapes = [short] * STREAMS + [long]
            return [Job(self._ids(ids, prompt), output) for prompt, output in shapes]

        return Workload("interference", "interference", [jobs(run) for run in range(runs)])

    def _fit(self, prompt: int, output: int) -> tuple[int, int]:
        prompt = max(1, min(prompt, max(self.longest - output, self.longest // 2)))
        return prompt, max(1, min(output, self.longest - prompt))

    def _ids(self, random: Generator, count: int) -> tuple[int, ...]:
        return tuple(random.integers(0, self.vocab_size, count).tolist())


def _ids(run: int) -> Generator:
    return np.random.default_rng((_IDS_SEED, run))


def _lengths(
    random: Generator, count: int, *, mean: float, sigma: float, bounds: tuple[int, int]
) -> list[int]:
    drawn = random.lognormal(math.log(mean) - sigma**2 / 2, sigma, count)
    return [int(length) for length in np.clip(np.rint(drawn), *bounds)]
