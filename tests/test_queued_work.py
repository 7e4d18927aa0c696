"""What is queued touches no memory of the host, whatever requests wish.

The meta device stands in for a GPU: it computes nothing, and has nothing that could be asked for.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .kernels import interpreter  # noqa: F401  # before any kernel: here they are interpreted

# isort: split
from stepahead.gpu.cuda.device import CudaDevice
from stepahead.gpu.cuda.opening import Place, open_paged_device
from stepahead.gpu.cuda.shapes import SHAPES, RandomWeights
from stepahead.gpu.logits_processors import ProcessedRows
from stepahead.gpu.models.config import kv_layers
from stepahead.gpu.models.opening import OpenModel
from stepahead.gpu.options import DeviceOptions
from stepahead.messages import Adjustments, Copies, StepDone
from stepahead.messages.arrays import frozen_ints
from stepahead.messages.logprobs import LogprobsWanted
from stepahead.messages.token_bias import TokenBias

from .device_driver import Driver, call_at_once, make_plan, make_row
from .run_again import RunAgain
from .test_cpu_device import RESULT_S, masked

THERE = torch.device("meta")
CONFIG = SHAPES["tiny"]


class HostMemory(RuntimeError):
    """Queued work read memory of the host."""


class NoHostMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations on the host's tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        if any(tensor.device != THERE and tensor.dim() for tensor in tensors_of((args, options))):
            raise HostMemory(f"{function.overloadpacket.__name__} of memory of the host")
        return function(*args, **options)


def tensors_of(value: Any) -> Iterator[Tensor]:
    """All of them, however deep inside."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors_of(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_of(part)
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_of(getattr(value, field.name))


def heads_of(qkv: Tensor, keys: Tensor, *_: Any, **__: Any) -> Tensor:
    kv_heads, dim = keys.shape[1:]
    return qkv.new_empty((len(qkv), qkv.shape[1] // dim - 2 * kv_heads, dim))


class Shapes:
    """Kernels as far as the shapes of what they give."""

    _results: Mapping[str, Callable[..., Tensor]] = {
        "add_rms_norm": lambda x, *_: torch.empty_like(x),
        "silu_mul": lambda x: x.new_empty((len(x), x.shape[1] // 2)),
        "linear": lambda x, weight, *_: x.new_empty((len(x), len(weight))),
        "write_cache": heads_of,
        "attend": lambda query, *_: torch.empty_like(query),
        "adjust": lambda logits, *_: torch.empty_like(logits, dtype=torch.float32),
        "find_cuts": lambda x, *_, **__: x.new_empty(len(x), dtype=torch.float32),
        "draw": lambda x, **_: x.new_empty(len(x), dtype=torch.int32),
    }

    def __getattr__(self, name: str) -> Callable[..., Tensor | None]:
        def call(*args: Any, **kwargs: Any) -> Tensor | None:
            if any(tensor.device != THERE for tensor in tensors_of((args, kwargs))):
                raise HostMemory(f"{name} was given memory of the host")
            result = self._results.get(name)
            return None if result is None else result(*args, **kwargs)

        return call

    def block_copier(self, *_: Any, **__: Any) -> Callable[..., Tensor | None]:
        return self.__getattr__("copy_blocks")


class AtOnce:
    """Streams that do everything when it is queued."""

    def run(self, work: Callable[[], None]) -> None:
        with torch.inference_mode(), NoHostMemory():
            work()

    def upload(self, words: Tensor) -> Tensor:
        return words.to(THERE)

    def upload_to(self, target: Tensor, words: Tensor) -> None:
        assert target.device == THERE

    def fetch(self, source: Callable[[], Tensor], target: Tensor) -> "AtOnce":
        found = source()
        assert found is target or found.device == THERE
        assert (found.dtype, found.shape) == (target.dtype, target.shape)
        return self

    def mark(self) -> "AtOnce":
        return self

    def wait(self) -> None:
        pass

    def is_done(self) -> bool:
        return True

    def host_words(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.int32)

    def close(self) -> None:
        pass


class NoNumbers(RandomWeights):
    def read(self, name: str, out: Tensor) -> None:
        pass


def shout(logits: Tensor, rows: ProcessedRows) -> None:
    logits[:, :1] += 1


def open_shapes(ops: Any) -> CudaDevice:
    model = OpenModel(
        vocab_size=CONFIG.vocab_size,
        context_length=CONFIG.context_length,
        eos_token_ids=CONFIG.eos_token_ids,
        layers=kv_layers(CONFIG),
        build=lambda _: pytest.fail("the processor's decoder is not asked for"),
        fast=(CONFIG, NoNumbers(CONFIG)),
    )
    options = DeviceOptions(
        model="tiny", dtype="bfloat16", num_slots=16, num_blocks=64, num_host_blocks=4
    )
    place = Place(THERE, ops, AtOnce, RunAgain)
    return open_paged_device(options, call_at_once, place, lambda _: model, {"shout": shout})


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    device = open_shapes(Shapes())
    yield device
    device.close()


@pytest.mark.parametrize(
    "wishes",
    [
        {"temperature": 0.0},
        {"top_k": 4, "top_p": 0.9, "min_p": 0.1},
        {"typical_p": 0.5},
        {"min_end": 100, "banned_ids": (1, 2)},
        {"adjustments": Adjustments(repetition_penalty=1.1, presence_penalty=0.2)},
        {"adjustments": Adjustments(logit_bias=TokenBias({3: 1.0, 5: -2.0}))},
        {"adjustments": Adjustments(allowed_token_ids=(3, 4, 5))},
        {"adjustments": Adjustments(bad_words=((3,), (4, 5), (6, 7, 8)))},
        {"adjustments": Adjustments(no_repeat_ngram_size=2)},
        {"adjustments": Adjustments(logits_processors=("shout",), allowed_token_ids=(1, 2))},
        {"logprobs": LogprobsWanted(top=3, token_ids=(5, 6))},
        {"logprobs": LogprobsWanted(prompt_top=2, prompt_start=1, prompt_end=20)},
    ],
)
def test_what_a_request_wishes_is_sent_and_never_waited_for(
    device: CudaDevice, wishes: dict[str, Any]
) -> None:
    driver = Driver(device)
    rows = [
        make_row(0, [1] * 20, [0, 1], **({"temperature": 1.0} | wishes)),
        make_row(1, [1] * 3, [2]),
    ]

    for plan, new_rows, drafts in (
        ([(0, 0, 20, True), (1, 0, 3, True)], rows, ()),
        ([(0, 20, 1, True), (1, 3, 1, True)], (), ()),
        ([(0, 21, 1, True), (2, 0, 9, True)], [make_row(2, [1] * 9, [3])], ()),
        ([(0, 22, 3, True)], (), [[7, 8]]),
    ):
        done = driver.run(plan, new_rows, drafts)

        assert len(done.token_ids) >= len(plan)


def test_masks_and_moved_blocks_are_sent_and_never_waited_for(device: CudaDevice) -> None:
    driver = Driver(device)
    row = make_row(0, [1] * 3, [0])
    moved = Copies(*(frozen_ints([block]) for block in (1, 0, 0, 2)))
    plan = masked(make_plan(1, [(0, 0, 3, True)], [row]), {7})
    object.__setattr__(plan, "copies", moved)

    device.launch(plan, driver.results.put)

    assert isinstance(driver.results.get(timeout=RESULT_S), StepDone)


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: x + torch.ones(x.shape[1]),
        lambda x: x + torch.ones(x.shape[1]).to(x.device),
        lambda x: x.index_select(1, torch.arange(x.shape[1])),
    ],
)
def test_whatever_reads_memory_of_the_host_would_be_seen(ask: Callable[[Tensor], Tensor]) -> None:
    class Asking(Shapes):
        breaks = False

        def silu_mul(self, gate_up: Tensor) -> Tensor:
            half = gate_up[:, : gate_up.shape[1] // 2]
            return ask(half) if self.breaks else half

    ops = Asking()
    device = open_shapes(ops)
    ops.breaks = True
    with pytest.raises(RuntimeError, match="memory of the host"):
        Driver(device).run([(0, 0, 2, True)], [make_row(0, [1, 2], [0])])
    device.close()
