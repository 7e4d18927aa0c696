"""Sharing a budget among rows."""

import numpy as np

from ...messages import Ints


def fair_shares(want: Ints, budget: int) -> Ints:
    """Cut what rows want down to the budget: an equal share for each, the rest in their order."""
    fair = np.minimum(want, budget // len(want))
    extra = want - fair
    before = extra.cumsum(dtype=np.int32) - extra
    shares: Ints = fair + np.clip(budget - int(fair.sum()) - before, 0, extra)
    return shares
