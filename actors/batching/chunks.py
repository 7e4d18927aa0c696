"""How far a long prompt comes in a step while others want to run: so much work, not so far.

A position attends to all before it, so the later ones of a prompt cost more than the first.
"""

import numpy as np

from ...messages import Ints

QUANTUM = 16  # positions: the least of a chunk, and what it is a multiple of


def fair_chunks(starts: Ints, work: int, doubling_context: int | None) -> Ints:
    """Positions that rows may compute from `starts` on, for as much work as `work` positions
    without context are.

    With k for `doubling_context`, where a position costs twice as much, n of them from s on are
    n + n*s/k + n*n/2k. None: all cost the same.
    """
    if doubling_context is None:
        return np.full_like(starts, work)
    reach = starts + np.float64(doubling_context)  # whole numbers, and so is what the root is of
    most = np.floor(np.sqrt(reach * reach + 2.0 * doubling_context * work)) - reach
    chunks: Ints = np.maximum(most // QUANTUM * QUANTUM, QUANTUM).astype(np.int32)
    return chunks
