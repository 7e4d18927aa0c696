"""Ratios of what was measured now to what a file of results holds. Pure."""

from collections.abc import Iterator, Mapping

from .measurement import Measurement

Line = Mapping[str, object]

_HIGH_IS_BETTER = ("_tok_s", "_per_s", "_gb_s", "_tflop_s")
_LOW_IS_BETTER = ("_ms", "_s", "_us", "_mb")


def ratios(measured: Measurement, there: Mapping[str, Mapping[str, float]]) -> Iterator[Line]:
    """One line for every number that both have; `ratio` is here to there."""
    other = there.get(measured.bench, {})
    for name, spread in measured.summary().items():
        if name in other:
            yield ratio(measured.bench, name, spread["median"], other[name])


def ratio(bench: str, name: str, here: float, there: float) -> Line:
    return {
        "compared": bench,
        "measure": name,
        "here": here,
        "there": round(there, 3),
        "ratio": round(here / there, 3) if there else None,
        "verdict": _verdict(name, here, there),
    }


def _verdict(name: str, here: float, there: float) -> str:
    if here == there:
        return "equal"
    if name.endswith(_HIGH_IS_BETTER):
        return "better" if here > there else "worse"
    if name.endswith(_LOW_IS_BETTER):
        return "better" if here < there else "worse"
    return ""
