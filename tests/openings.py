"""Where a recording could have begun, and what of it would then be there."""

from dataclasses import replace
from itertools import pairwise
from typing import get_args

from stepahead.actors.batching import Grammars
from stepahead.actors.cores import Cores
from stepahead.actors.journal import Envelope
from stepahead.actors.kvpool import PoolAnswer, PoolQuestion
from stepahead.actors.opening import Opening
from stepahead.actors.recording import Recording, replay
from stepahead.actors.recording.reading import recording_of
from stepahead.actors.recording.snapshot import Snapshot
from stepahead.actors.recording.state import state_of
from stepahead.actors.recording.writing import pieces
from stepahead.messages import Message

QUESTIONS, ANSWERS = get_args(PoolQuestion), get_args(PoolAnswer)


def openings(recording: Recording) -> list[tuple[int, int]]:
    """Turns of the Scheduler that say something: (place, number of the first message they say)."""
    found = []
    for place, (heard, following) in enumerate(pairwise(recording.turns)):
        first, said = heard.turn.envelopes[0].message, following.turn.envelopes[0]
        is_own = heard.actor == "scheduler" and not isinstance(first, ANSWERS)
        if is_own and (following.actor == "executor" or isinstance(said.message, QUESTIONS)):
            found.append((place, said.seq))
    return found


def from_there_on(
    recording: Recording, place: int, first: int, grammars: Grammars | None = None
) -> Recording:
    """The rest of a recording from that turn on, as it is read from a file."""
    turn = recording.turns[place].turn
    captured: list[tuple[Opening, object]] = []

    def watch(actor: str, envelope: Envelope[Message], cores: Cores) -> bool:
        if envelope is not turn.envelopes[0]:
            return True
        opening = Opening(turn.t_ns, first - 1, *cores.batcher.owners)
        captured.append((opening, state_of(Snapshot(cores))))
        return False

    replay(recording, grammars=grammars, watch=watch)
    ((opening, state),) = captured
    rest = replace(recording, turns=recording.turns[place:], opening=opening, state=state)
    return recording_of(b"".join(pieces(rest)))
