"""Session: one sitting with a card, whose parts share the time."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from ...gpu.cuda.opening import Place, gpu_place
from ...gpu.cuda.ops import TorchOps
from ...gpu.cuda.streams import ThreadStreams
from ...gpu.roofline import H200, Rates
from . import plans
from .budget import Budget
from .busy import BusyMeter
from .card_facts import card_facts, require_gpu
from .figure import Figure, Told
from .opened import BenchPlace
from .rates import measure_rates
from .sizes import ON_GPU, TRIAL, Sizes

BUDGET_S = 480.0  # seconds for everything
CARD_BUDGET_S = 240.0  # for what `doctor` looks at


@dataclass(frozen=True, slots=True)
class Checked:
    """How all kernels' checks went together."""

    num_checks: int
    largest_percent: float  # difference, of what is allowed
    faults: tuple[str, ...]

    def line(self) -> dict[str, object]:
        return {
            "bench": "gpu kernels",
            "checks": self.num_checks,
            "largest_percent": round(self.largest_percent, 1),
            "faults": list(self.faults),
        }

    def text(self) -> str:
        fit = self.num_checks - len(self.faults)
        lines = [
            f"kernels: {fit} of {self.num_checks} checks are as their references say; the largest "
            f"difference is {self.largest_percent:.0f}% of what is allowed"
        ]
        return "\n".join([*lines, *(f"! {fault}" for fault in self.faults)])


class Session:
    """Raises ConfigError where there is no GPU, unless it is a trial on the processor."""

    def __init__(self, budget_s: float = BUDGET_S, *, is_trial: bool = False) -> None:
        if not is_trial:
            require_gpu()
        self.budget = Budget(budget_s)
        self.facts = card_facts()
        device = torch.device("cpu") if is_trial else torch.device("cuda")
        self._sizes: Sizes = TRIAL if is_trial else ON_GPU
        self._busy = BusyMeter(device)
        self._place = _trial_place(self._busy) if is_trial else gpu_place(self._busy.around)
        self._rates: Rates | None = None

    @property
    def rates(self) -> Rates:
        """What the card does at best; measured when it is first asked for."""
        if self._rates is None:
            sizes = self._sizes
            self._rates = measure_rates(
                self._place.device, copy_bytes=sizes.copy_bytes, width=sizes.product_width
            )
        return self._rates

    def ceilings(self) -> Iterator[Figure]:
        """Those rates, beside what was measured on an H200."""
        rates = self.rates
        yield Figure(
            run="R0",
            what="copy within the memory",
            name="copy_gb_s",
            value=rates.bandwidth / 1e9,
            floor=H200.bandwidth / 1e9,
        )
        yield Figure(
            run="R0",
            what="product in bfloat16",
            name="product_tflop_s",
            value=rates.flops_rate / 1e12,
            floor=H200.flops_rate / 1e12,
        )

    def check_kernels(self) -> Checked | None:
        """Every kernel against its reference; None on a processor that does not interpret them."""
        device = self._place.device
        if device.type != "cuda" and not os.environ.get("TRITON_INTERPRET"):
            return None
        from ...gpu.kernels.checks import run_checks

        verdicts = list(run_checks(device))
        faults = tuple(
            f"{one.name}, {str(one.dtype).removeprefix('torch.')}: "
            + (one.fault or f"{100 * one.worst:.0f}% of the difference that is allowed")
            for one in verdicts
            if not one.is_fit
        )
        fit = [one.worst for one in verdicts if one.is_fit]
        return Checked(len(verdicts), 100 * max(fit, default=0.0), faults)

    def card(self) -> Iterator[Told]:
        """R6, R3 and R4."""
        return plans.card(self.where, self.budget)

    def workloads(self) -> Iterator[Told]:
        """R1, R2, R5, R7 and R8."""
        return plans.workloads(self.where, self.budget)

    @property
    def where(self) -> BenchPlace:
        """What runs are made with."""
        return BenchPlace(self._place, self.rates, self._sizes, self._busy)


def _trial_place(busy: BusyMeter) -> Place:
    return Place(torch.device("cpu"), TorchOps(), partial(ThreadStreams, around=busy.around))
