"""Rows that wish some of everything done to their logits, for checks and tests."""

import torch
from torch import Tensor

from .. import sampling_line as line
from ..adjust import RowMasks, Wishes

ROWS = torch.tensor([0, 4, 4, 4, 1, -1, 3, 2], dtype=torch.int32)  # slots; one has drafts
POSITIONS = torch.tensor([5, 9, 10, 11, 20, 0, 29, 7], dtype=torch.int32)

_SLOTS, _LENGTH = 5, 40
_WORDS = (
    (line.COUNTS_ROW, (-1, 1, -1, -1, 0)),
    (line.BIASES_ROW, (-1, -1, 0, -1, 1)),
    (line.BANS_ROW, (-1, -1, -1, 0, 1)),
    (line.MIN_END, (0, 0, 0, 30, 12)),
    (line.PROMPT, (3, 4, 5, 6, 0)),
)


def example(seed: int, vocab: int) -> Wishes:
    """Slot 0 wishes nothing, 1 has penalties, 2 biases and allowed ids, 3 bans, 4 all of it; some
    rows have masks."""
    generator = torch.Generator().manual_seed(seed)
    lines = torch.zeros(_SLOTS, line.WIDTH.value, dtype=torch.int32)
    for word, values in _WORDS:
        line.ints(lines, word)[:] = torch.tensor(values)
    line.floats(lines, line.REPETITION)[:] = 1.7
    line.floats(lines, line.FREQUENCY)[:] = 0.3
    line.floats(lines, line.PRESENCE)[:] = torch.tensor([0.0, 0.5, 0.0, 0.0, -0.5])
    biases = torch.randn(2, vocab, generator=generator)
    biases[torch.rand(2, vocab, generator=generator) < 0.3] = float("nan")
    biases[:, :1] = float("-inf")
    tokens = torch.randint(0, min(vocab, 12), (_SLOTS, _LENGTH), generator=generator)
    return Wishes(
        lines=lines,
        tokens=tokens.int(),
        counts=torch.zeros(2, vocab, dtype=torch.int32),
        biases=biases,
        bans=_some_words(generator, 2, -(-vocab // 32)),
        masks=RowMasks(
            _some_words(generator, 2, max(vocab // 32 - 3, 0)),
            torch.tensor([-1, 1, -1, 0, -1, -1, 0, -1], dtype=torch.int32),
        ),
    )


def _some_words(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(-(2**31), 2**31, shape, generator=generator).to(torch.int32)
