"""Swapping on the processor device: the KV bytes of all layers go to host memory and come back."""

from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch

from stepahead.actors.batching import Batcher, BatchLimits
from stepahead.actors.cores import build_pool
from stepahead.gpu.cpu import CpuDevice, open_cpu_device
from stepahead.gpu.kv import LayerShape, PagedKV
from stepahead.gpu.options import DeviceOptions
from stepahead.gpu.tensor_kv import TensorKV
from stepahead.messages import (
    ConfigError,
    SamplingParams,
    StepDone,
    StepFailed,
    TokensReady,
    frozen_ints,
)

from .batching import make_request
from .device_driver import call_at_once
from .tiny_models import make_folder

GREEDY = SamplingParams(temperature=0, max_tokens=24)
PROMPTS = [[(7 * i + 11 * k) % 90 + 3 for i in range(22)] for k in range(4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model"), "llama", initializer_range=0.5)


class Run:
    """Four greedy requests on a device, to their end."""

    def __init__(self, folder: Path, *, generic: bool = False, **sizes: Any) -> None:
        options = DeviceOptions(
            model=str(folder), dtype="float32", block_size=4, generic=generic, **sizes
        )
        device = open_cpu_device(options, call_at_once)
        try:
            self._run(device)
        finally:
            device.close()

    def _run(self, device: CpuDevice) -> None:
        facts = device.facts
        limits = BatchLimits(
            block_size=4,
            num_blocks=facts.num_blocks,
            max_model_len=facts.max_model_len,
            max_num_seqs=8,
            max_num_batched_tokens=64,
            long_prefill_token_threshold=None,
            steps_in_flight=2,
            prefix_caching=False,
            num_host_blocks=facts.host.num_blocks,
            block_copy_s=facts.host.block_copy_s,
            token_s=facts.host.token_s,
        )
        pool = build_pool(limits, watermark=0)
        batcher = Batcher(limits, pool)
        for serial, prompt in enumerate(PROMPTS):
            request = make_request(serial, prompt, max_tokens=24, stop_token_ids=())
            batcher.add(replace(request, params=GREEDY), 0)
        results: SimpleQueue[StepDone | StepFailed] = SimpleQueue()
        self.said: dict[int, list[int]] = {serial: [] for serial in range(len(PROMPTS))}
        self.computed = 0
        while not batcher.is_empty:
            while (plan := batcher.plan(0)) is not None:
                self.computed += plan.num_tokens
                device.launch(plan, results.put)
            result = results.get(timeout=60)
            assert isinstance(result, StepDone), result
            batcher.complete(result)
            self._hear(batcher.take_report())
        self.swaps, self.preemptions = batcher.swaps, batcher.preemptions
        self.moved = 0 if pool.host is None else pool.host.blocks_moved

    def _hear(self, report: TokensReady | None) -> None:
        if report is not None:
            columns = report.serials.tolist(), report.token_ids.tolist()
            for serial, token_id in zip(*columns, strict=True):
                self.said[serial].append(token_id)


@pytest.mark.parametrize("generic", [False, True])
def test_greedy_ids_are_the_same_though_sequences_were_swapped(folder: Path, generic: bool) -> None:
    roomy = Run(folder, generic=generic, num_blocks=64)
    tight = Run(folder, generic=generic, num_blocks=20, num_host_blocks=64)
    again = Run(folder, generic=generic, num_blocks=20)

    assert (roomy.preemptions, roomy.moved) == (0, 0)
    assert tight.swaps > 0
    assert tight.moved > 8
    assert roomy.said == tight.said == again.said
    assert roomy.computed <= tight.computed < again.computed


def test_without_the_bytes_the_answers_would_be_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the test above would notice if blocks were not really moved."""
    roomy = Run(folder, num_blocks=64)
    monkeypatch.setattr(PagedKV, "copy_blocks", lambda self, blocks, source, source_blocks: None)

    assert Run(folder, num_blocks=20, num_host_blocks=64).said != roomy.said


def test_blocks_are_copied_in_every_layer() -> None:
    layers = (LayerShape(2, 4, 4), LayerShape(1, 8, 2))
    small, large = (
        TensorKV(layers, num_blocks=count, block_size=4, dtype=torch.float32) for count in (3, 6)
    )
    for memory in (*large.keys, *large.values):
        memory.copy_(torch.arange(memory.numel()).view(memory.shape))

    small.copy_blocks(frozen_ints([2, 0]), large, frozen_ints([1, 5]))

    for own, other in zip((*small.keys, *small.values), (*large.keys, *large.values), strict=True):
        assert torch.equal(own[8:12], other[4:8])
        assert torch.equal(own[0:4], other[20:24])
        assert not np.count_nonzero(own[4:8].numpy())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"swap_memory": 10}, "swap_memory is 10 bytes"),
        ({"swap_memory": 2**60}, "are free; give less swap_memory"),
        ({"num_host_blocks": 2**31 - 1}, "are free; give less swap_memory"),
    ],
)
def test_host_memory_that_cannot_be_is_refused(
    folder: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        Run(folder, num_blocks=20, **options)


def test_host_memory_may_be_given_in_bytes(folder: Path) -> None:
    by_count = Run(folder, num_blocks=20, num_host_blocks=64)
    by_bytes = Run(folder, num_blocks=20, swap_memory=2**20)

    assert by_bytes.moved == by_count.moved > 0
