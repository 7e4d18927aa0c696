"""Writing a recording: its bytes, piece by piece."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...messages.frames import Frame, sealed
from ..journal import Heard
from .format import MAGIC, packed_opening
from .privacy import Replacing, Tokens, Veil, veil_of
from .reading import Recording
from .state_privacy import mask_state


def write_recording(recording: Recording, path: Path, tokens: Tokens = Tokens.KEPT) -> None:
    """Raises OSError where that is impossible."""
    with path.open("wb") as file:
        file.writelines(pieces(recording, tokens))


def pieces(recording: Recording, tokens: Tokens = Tokens.KEPT) -> Iterator[bytes]:
    """The bytes of the file."""
    veil = veil_of(tokens, recording.header.vocab_size)
    yield MAGIC
    yield sealed(replace(recording.header, tokens=tokens).packed())
    if recording.opening is not None:
        yield from _frames(recording.begun, veil)
        state = _veiled(recording.state, veil) if tokens != Tokens.DROPPED else None
        yield sealed(packed_opening(recording.opening, state))
    yield from _frames(recording.turns, veil)
    if recording.end is not None:
        yield sealed(recording.end.packed())


def _veiled(state: Any | None, veil: Veil) -> Any | None:
    return mask_state(state, veil) if isinstance(veil, Replacing) else state


def _frames(turns: Iterable[Heard], veil: Veil) -> Iterator[bytes]:
    for actor, turn in turns:
        for seq, t_ns, message in turn.envelopes:
            frame = Frame(seq, t_ns, actor, turn.number, turn.t_ns, veil(message))
            yield sealed(frame.packed())
