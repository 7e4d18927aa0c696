"""What the actors really say to each other, heard by a sink on the journal."""

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from stepahead.actors.journal import Envelope
from stepahead.actors.virtual_time import run_virtual
from stepahead.gpu.oracle import Oracle
from stepahead.messages import Message, StepDone, StepPlan, TokensReady, same
from stepahead.messages.codec import decode, encode

from .drafters import ScriptedDrafter
from .engines import make_engine
from .eventful import call_in_many_ways

Heard = list[tuple[str, int, Envelope[Message]]]


async def eventful_run(heard: Heard) -> None:
    oracle = Oracle(eos_every=200)
    drafter = ScriptedDrafter(oracle, ("none", "partly"))
    engine = make_engine(num_blocks=24, max_model_len=64, oracle=oracle, drafter=drafter)
    await engine.start()
    engine._started.journal.attach(
        lambda actor, turn: heard.extend((actor, turn.number, env) for env in turn.envelopes)
    )
    await call_in_many_ways(engine)
    await engine.close()


def listen() -> Heard:
    heard: Heard = []
    run_virtual(eventful_run(heard))
    return heard


def arrays_of(value: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, tuple):
        return [array for part in value for array in arrays_of(part)]
    if is_dataclass(value):
        return [array for f in fields(value) for array in arrays_of(getattr(value, f.name))]
    return []


def test_every_message_has_a_number_of_its_own() -> None:
    numbers = [envelope.seq for _, _, envelope in listen()]

    assert len(set(numbers)) == len(numbers)


def test_the_arrays_of_every_message_are_owned_and_read_only() -> None:
    """Rule 28."""
    for actor, _, envelope in listen():
        for array in arrays_of(envelope.message):
            assert not array.flags.writeable, f"{actor} heard {envelope.message}"
            assert array.base is None or not array.base.flags.writeable


def test_every_message_survives_the_wire() -> None:
    for _, _, envelope in listen():
        assert same(decode(encode(envelope.message)), envelope.message)


def test_two_runs_in_virtual_time_say_the_same() -> None:
    first, second = listen(), listen()

    assert len(first) == len(second)
    for (actor, turn, one), (other_actor, other_turn, other) in zip(first, second, strict=True):
        assert (actor, turn, one.seq, one.t_ns) == (
            other_actor,
            other_turn,
            other.seq,
            other.t_ns,
        )
        if isinstance(one.message, (StepPlan, StepDone, TokensReady)):
            assert same(_without_seeds(one.message), _without_seeds(other.message))


def _without_seeds(message: Message) -> Any:
    """Seeds are drawn afresh for each request; nothing else may differ."""
    if isinstance(message, StepPlan):
        return tuple(
            getattr(message, f.name) for f in fields(message) if f.name != "new_rows"
        ), tuple((row.slot, row.epoch, row.block_ids) for row in message.new_rows)
    return message


def test_a_plan_is_posted_before_the_tokens_of_its_turn() -> None:
    """Rule 1: the device comes first."""
    last_plan = last_report = 0
    for _, _, envelope in sorted(listen(), key=lambda item: item[2].seq):
        if isinstance(envelope.message, StepPlan):
            last_plan = envelope.seq
            assert last_plan > last_report
        elif isinstance(envelope.message, TokensReady):
            last_report = envelope.seq
