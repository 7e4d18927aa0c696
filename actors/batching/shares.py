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


def beside_newcomers(budget: int, num_rows: int, num_long: int) -> int:
    """What running rows take of a budget while somebody waits for nothing but budget: each of
    `num_long` rows that have more to compute gets an equal share, and a newcomer one, too. A row
    that only decodes loses nothing."""
    return max(budget - budget // (num_long + 1), min(num_rows, budget))
