"""`doctor --gpu`: the card, its kernels against their references, and how near it comes to its
best."""

from ...actors.gpu_bench.screen import Screen, examine
from ...actors.gpu_bench.session import CARD_BUDGET_S, Session
from ..output import write

_FIT, _UNFIT = 0, 1


def examine_gpu(*, as_json: bool, is_trial: bool) -> int:
    """Exit code 0 where every kernel computes what it should. Raises ConfigError without a GPU."""
    session = Session(CARD_BUDGET_S, is_trial=is_trial)
    screen = Screen(write, as_json=as_json)
    examine(session, screen)
    return _UNFIT if screen.has_faults else _FIT
