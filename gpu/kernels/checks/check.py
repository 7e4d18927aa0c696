"""Check: a kernel and its reference on the same inputs, and how far apart their results may lie."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

_ULP = {torch.float32: 2.0**-20, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}


@dataclass(frozen=True, slots=True)
class Pair:
    """What a kernel gave and what it should have given."""

    given: Tensor
    expected: Tensor
    ulps: float = 1.0  # units in the last place, of 1 or of the number where that is larger


@dataclass(frozen=True, slots=True)
class Bench:
    """Where a check runs, and in what numbers."""

    device: torch.device
    dtype: torch.dtype

    def random(self, seed: int, *shape: int, padding: int = 0, scale: float = 1.0) -> Tensor:
        """Normal numbers on the processor; rows lie `padding` numbers further apart, which hold
        NaN: whoever reads them shows it."""
        generator = torch.Generator().manual_seed(seed)
        width = torch.Size(shape[1:]).numel()
        whole = torch.full((shape[0], width + padding), float("nan"), dtype=self.dtype)
        whole[:, :width].copy_(scale * torch.randn(shape[0], width, generator=generator))
        return whole.as_strided(shape, (width + padding, *torch.empty(shape[1:]).stride()))

    def there(self, value: Any) -> Any:
        """A tensor's copy on the device, at the same strides; of a container, that of each."""
        if isinstance(value, Tensor):
            flat = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
            moved = flat.clone().to(self.device)
            return moved.as_strided(value.size(), value.stride(), value.storage_offset())
        if isinstance(value, Mapping):
            return {name: self.there(part) for name, part in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self.there(part) for part in value)
        return value


Compare: TypeAlias = Callable[[Bench], Iterable[Pair]]


@dataclass(frozen=True, slots=True)
class Check:
    """One case of one kernel."""

    name: str
    compare: Compare
    kernels: tuple[Any, ...]  # the functions under triton.jit that it runs
    dtypes: tuple[torch.dtype, ...] = field(default=tuple(_ULP))  # those that it makes sense in


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a check went."""

    name: str
    dtype: torch.dtype
    worst: float = 0.0  # difference as a share of what is allowed
    fault: str | None = None  # what it raised

    @property
    def is_fit(self) -> bool:
        return self.fault is None and self.worst <= 1.0


def run_check(check: Check, device: torch.device, dtype: torch.dtype) -> Verdict:
    """Whatever the kernel raises is the verdict. What a device cannot do is not compared."""
    try:
        worst = max((share_of(pair) for pair in check.compare(Bench(device, dtype))), default=0.0)
    except Exception as error:  # a kernel that does not compile or launch raises anything
        said = str(error).strip().splitlines() or [""]
        return Verdict(check.name, dtype, fault=f"{type(error).__name__}: {said[0]}")
    return Verdict(check.name, dtype, worst)


def share_of(pair: Pair) -> float:
    """The largest difference as a share of the allowed one; infinite where one is no number and
    the other is, or where whole numbers differ."""
    given, expected = pair.given.cpu(), pair.expected
    if given.shape != expected.shape:
        return float("inf")
    if not expected.is_floating_point():
        return 0.0 if torch.equal(given, expected) else float("inf")
    if not expected.numel():
        return 0.0
    given, exact = given.double(), expected.double()
    is_same = (given == exact) | (given.isnan() & exact.isnan())
    allowed = pair.ulps * _ULP[expected.dtype] * exact.abs().clamp(min=1.0)
    share = ((given - exact).abs() / allowed).nan_to_num(nan=float("inf"), posinf=float("inf"))
    return float(share.masked_fill(is_same, 0.0).max())
