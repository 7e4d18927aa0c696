"""The CUDA device's code over keys and values of 8 bits."""

from pathlib import Path

import pytest
import torch

from stepahead import EngineConfig
from stepahead.messages import ConfigError

from .device_driver import generate
from .paged_devices import OpaqueOps, TritonOps, one_thread, open_paged  # noqa: F401
from .paged_engines import ids_of, make_engine_folder, prompts, running, say, ways
from .test_cpu_device import PROMPTS, open_device
from .tiny_models import make_folder

# isort: split
from stepahead.gpu.cuda.ops import TorchOps
from stepahead.gpu.kernels import attention_parts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model"), "llama", initializer_range=0.5)


def test_the_same_memory_holds_more_positions(folder: Path) -> None:
    blocks = []
    for kv_dtype in ("auto", "fp8"):
        device = open_paged(
            folder, kv_dtype=kv_dtype, num_blocks=None, kv_memory=2**16, dtype="bfloat16"
        )
        blocks.append(device.facts.num_blocks)
        device.close()

    assert blocks[1] == 2 * blocks[0]


def test_the_device_says_the_same_by_kernels_and_by_references(folder: Path) -> None:
    class Kernels(TorchOps):
        write_cache = staticmethod(TritonOps.write_cache)
        attend = staticmethod(TritonOps.attend)

    said = []
    for ops in (OpaqueOps(), OpaqueOps(Kernels)):
        device = open_paged(folder, ops=ops, kv_dtype="fp8")
        said.append(generate(device, PROMPTS, 3, chunk=4))
        device.close()

    assert said[0] == said[1]


def test_a_batch_says_what_each_of_its_rows_says_alone(folder: Path) -> None:
    """Keys and values are rounded one by one: who is beside them does not matter."""
    device = open_paged(folder, kv_dtype="fp8")

    together = generate(device, PROMPTS, 8, chunk=4)

    assert [generate(device, [prompt], 8)[0] for prompt in PROMPTS] == together
    device.close()


async def test_blocks_move_to_host_memory_and_back_as_they_are(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = make_engine_folder(tmp_path_factory.mktemp("engine"))
    said, swaps = [], []
    for num_blocks, num_host_blocks in ((128, None), (26, 64)):
        async with running(
            folder,
            parts={"kv_dtype": "fp8"},
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
        ) as engine:
            said.append(ids_of(await say(engine, prompts(), ways())))
            swaps.append(engine.stats().swaps)

    assert said[0] == said[1]
    assert swaps[0] == 0 < swaps[1]


def test_a_gpu_that_cannot_convert_them_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("kernels.attention_parts", "cuda.kv_memory"):
        monkeypatch.setattr(f"stepahead.gpu.{module}.capability_of", lambda device: 80)
    assert not attention_parts.keeps_e4m3(torch.device("cpu"))

    with pytest.raises(ConfigError, match=r"capability 8\.9 or newer .*, and this one has 8\.0"):
        open_paged(folder, kv_dtype="fp8")


def test_the_processor_keeps_none(folder: Path) -> None:
    with pytest.raises(ConfigError, match="kv_dtype is 'fp8', which a GPU alone keeps"):
        open_device(folder, kv_dtype="fp8")


def test_other_types_are_a_mistake() -> None:
    with pytest.raises(ConfigError, match="kv_dtype is 'int8'; it must be one of auto, fp8"):
        EngineConfig(kv_dtype="int8")  # type: ignore[arg-type]
