"""`bench gpu`: whole workloads of random weights, each figure beside the best that is possible."""

from itertools import chain

from ...actors.gpu_bench.figure import Figure, LeftOut, Told
from ...actors.gpu_bench.session import Session
from .measurement import Measurement
from .reporting import Report

_DONE, _FAULT = 0, 1


def measure_gpu(budget_s: float, report: Report, *, is_trial: bool) -> int:
    """Exit code 0 where nothing failed. Raises ConfigError where there is no GPU."""
    session = Session(budget_s, is_trial=is_trial)
    report.show({"bench": "gpu card", **session.facts})
    has_faults = False
    for one in chain[Told](session.ceilings(), session.workloads()):
        if isinstance(one, LeftOut):
            has_faults |= one.is_fault
            report.show(one.line(), one.text())
        else:
            report.add(measurement_of(one), one.text())
    return _FAULT if has_faults else _DONE


def measurement_of(figure: Figure) -> Measurement:
    """A figure as a measurement of one run, so that files hold it and results can be compared."""
    line = figure.line()
    about = {name: value for name, value in line.items() if name not in ("bench", figure.name)}
    return Measurement(figure.bench, about, [{figure.name: figure.value}])
