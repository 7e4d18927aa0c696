"""A model that says what a test has written down, in an engine of its own tokenizer."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stepahead import Engine, SamplingParams
from stepahead.actors.backend import Backend
from stepahead.actors.text.tokenizer import Tokenizer
from stepahead.gpu.oracle import Oracle
from stepahead.gpu.simulated import SimulatedDevice

from .engines import STEP, inline, make_config, make_facts, virtual_clock


@dataclass(frozen=True, slots=True)
class ScriptedOracle(Oracle):
    """Follows the script where it knows the prefix, and ends anywhere else."""

    follows: Mapping[int, int] = field(default_factory=dict)  # what comes after a prefix's hash

    def next_token(
        self, prefix: int, *, banned: Sequence[int] = (), allowed: Collection[int] | None = None
    ) -> int:
        return self.follows.get(prefix, self.eos_token_id)


def scripted_engine(
    tokenizer: Tokenizer,
    script: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    eos_of_model: Collection[int] | None = None,
    **options: object,
) -> Engine:
    """An engine that says these answers to these prompts; call it inside a running loop.

    The model's own configuration names the tokenizer's ids as its ends, if not others.
    """
    (eos,) = tokenizer.eos_token_ids
    oracle = Oracle(eos)
    follows: dict[int, int] = {}
    for prompt, answer in script:
        hashes = oracle.extend(oracle.empty, [*prompt, *answer])
        follows |= zip(hashes[len(prompt) - 1 : -1], answer, strict=True)
    config = make_config(**options)
    facts = replace(
        make_facts(config),
        vocab_size=tokenizer.vocab_size,
        eos_token_ids=frozenset(eos_of_model or tokenizer.eos_token_ids),
    )
    device = SimulatedDevice(
        facts,
        2 * config.max_num_seqs,
        asyncio.get_running_loop().call_later,
        oracle=ScriptedOracle(eos, follows=follows),
        step_time=STEP,
    )
    backend = Backend(device, tokenizer, SamplingParams())
    return Engine(config, backend=backend, offload=inline, clock=virtual_clock())
