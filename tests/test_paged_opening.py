"""Opening the CUDA device: what an engine takes it for, what it refuses, and other weights."""

import asyncio
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from stepahead import Engine, EngineConfig
from stepahead.actors.text.toy import ToyTokenizer
from stepahead.gpu.cuda import driver, finding
from stepahead.gpu.cuda.finding import GpuFacts
from stepahead.gpu.logits_processors import LogitsProcessor, LogitsProcessors
from stepahead.gpu.options import DeviceOptions
from stepahead.messages import ConfigError, ModelError, WeightsLoaded

from .device_driver import generate
from .paged_devices import (
    CudaDevice,
    OpaqueOps,
    Post,
    ThreadStreams,
    TorchOps,
    Weights,
    load_decoder_weights,
    one_thread,  # noqa: F401
    open_paged,
    padding_step,
)
from .paged_engines import VOCAB, make_engine_folder
from .run_again import RunAgain
from .test_cpu_device import PROMPTS, RESULT_S, open_device
from .tiny_models import make_folder, make_model, write_gguf

H200 = GpuFacts(torch_version="2.11.0", cuda_version="13.0", name="NVIDIA H200", capability=(9, 0))
T4 = GpuFacts(torch_version="2.11.0", cuda_version="13.0", name="Tesla T4", capability=(7, 5))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_engine_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with an H200, but for the H200."""

    def open_device(
        options: DeviceOptions, post: Post, *, processors: LogitsProcessors | None
    ) -> CudaDevice:
        finding.require_gpu()
        slots = options.num_slots
        return open_paged(Path(options.model), post=post, processors=processors, num_slots=slots)

    monkeypatch.setattr(driver, "has_driver", lambda: True)
    monkeypatch.setattr(finding, "find_gpu", lambda: H200)
    monkeypatch.setattr("stepahead.gpu.cuda.opening.open_cuda_device", open_device)
    tokenizer = ToyTokenizer(VOCAB)
    monkeypatch.setattr("stepahead.actors.backend._load_tokenizer", lambda path: tokenizer)
    return monkeypatch


def device_of(
    folder: Path, processors: dict[str, LogitsProcessor] | None = None, **options: Any
) -> type[object]:
    """What an engine runs on."""

    async def run() -> type[object]:
        fields = {"dtype": "float32", "block_size": 4, "num_blocks": 64, **options}
        config = EngineConfig(model=folder, **fields)
        async with Engine(config, logits_processors=processors or {}) as engine:
            result = await engine.generate([5, 6, 7])
            assert result.token_ids
            return type(engine._opened.device)

    return asyncio.run(run())


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_an_engine_takes_the_gpu_that_is_there(folder: Path, device: str) -> None:
    assert device_of(folder, device=device) is CudaDevice


@pytest.mark.usefixtures("machine")
def test_the_processor_is_taken_where_that_is_asked_for(folder: Path) -> None:
    assert device_of(folder, device="cpu") is not CudaDevice


@pytest.mark.usefixtures("machine")
def test_auto_takes_the_processor_for_what_a_gpu_cannot_do_yet(folder: Path) -> None:
    def processor(logits: object, rows: object) -> None:
        pass

    assert device_of(folder, deterministic=True) is not CudaDevice
    assert device_of(folder, {"none": processor}) is not CudaDevice


def test_auto_takes_the_processor_where_the_gpu_is_too_old(
    folder: Path, machine: pytest.MonkeyPatch
) -> None:
    machine.setattr(finding, "find_gpu", lambda: T4)

    assert device_of(folder, device="auto") is not CudaDevice
    with pytest.raises(ConfigError, match=r"Tesla T4 has compute capability 7\.5; 8\.0"):
        device_of(folder, device="cuda")


def test_a_machine_without_a_gpu_is_told_from_a_mistake(folder: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")

    with pytest.raises(ConfigError, match="device is 'cuda', and"):
        device_of(folder, device="cuda")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"deterministic": True}, "cannot do deterministic yet; leave it out"),
        ({"quantization": "int4"}, "takes dtype 'auto' or 'bfloat16', not 'float32'"),
        ({"num_blocks": None, "kv_memory": 100}, r"1024 bytes.*given: 100"),
        ({"max_model_len": 1000}, "the model's context is 64"),
    ],
)
def test_what_cannot_be_had_is_refused_when_it_is_opened(
    folder: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        open_paged(folder, **options)


class Closing(ThreadStreams):
    """Tells whether it was closed."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True
        super().close()


def test_what_fails_while_it_is_opened_closes_its_streams(folder: Path) -> None:
    class Broken(OpaqueOps):
        def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("no memory for a step")

    streams = Closing()
    with pytest.raises(torch.OutOfMemoryError, match="no memory for a step"):
        open_paged(folder, streams=streams, ops=Broken(), capture=RunAgain)

    assert streams.is_closed


def test_whoever_is_interrupted_while_it_is_opened_leaves_no_device_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: object) -> None:
        raise KeyboardInterrupt

    streams, raised = Closing(), threading.Event()

    def opening() -> None:
        with pytest.raises(KeyboardInterrupt):
            open_paged(folder, streams=streams)
        raised.set()

    monkeypatch.setattr("stepahead.gpu.queued.Future.result", interrupted)
    threading.Thread(target=opening, daemon=True).start()

    assert raised.wait(RESULT_S)
    assert streams.is_closed


def test_a_family_without_a_fast_path_is_refused_before_its_weights_are_read(
    tmp_path: Path,
) -> None:
    folder = make_folder(tmp_path, "phi3", rope_parameters={"rope_type": "default"})

    with pytest.raises(ConfigError, match="a family that the cuda device cannot run yet"):
        open_paged(folder)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "llama")
    (folder / "model.safetensors").unlink()

    with pytest.raises(ModelError, match="has no weights"):
        open_paged(folder)


def test_a_gguf_file_says_what_it_says_on_the_processor(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", make_model("llama", initializer_range=0.5))
    said = []
    for device in (open_paged(path), open_device(path)):
        said.append(generate(device, PROMPTS, 6))
        device.close()

    assert said[0] == said[1]


def reload(device: CudaDevice, source: Path) -> str | None:
    """The error, if there is one."""
    told: SimpleQueue[WeightsLoaded] = SimpleQueue()
    device.load_weights(str(source), told.put)
    return told.get(timeout=RESULT_S).error


def test_after_a_reload_it_says_what_a_new_one_would(tmp_path: Path) -> None:
    old = make_folder(tmp_path / "old", "llama", initializer_range=0.5)
    new = make_folder(tmp_path / "new", "llama", initializer_range=0.7)
    fresh, device = open_paged(new), open_paged(old)
    before, expected = generate(device, PROMPTS, 6), generate(fresh, PROMPTS, 6)

    error = reload(device, new)
    after = generate(device, PROMPTS, 6)
    name = device.facts.model
    fresh.close()
    device.close()

    assert error is None
    assert after == expected != before
    assert name == "new"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": 3}, "has 3 layers"),
        ({"vocab_size": 100}, "has 100 ids in its vocabulary"),
        ({"intermediate_size": 48}, "differs in intermediate size"),
        ({"rms_norm_eps": 0.1}, "differs in rms eps"),
        ({"tie_word_embeddings": True}, "differs in tied embeddings"),
    ],
)
def test_weights_of_another_shape_change_nothing(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    old = make_folder(tmp_path / "old", "llama", initializer_range=0.5)
    other = make_folder(tmp_path / "other", "llama", initializer_range=0.5, **changes)
    device = open_paged(old)
    before = generate(device, PROMPTS, 4)

    error = reload(device, other)
    after = generate(device, PROMPTS, 4)
    device.close()

    assert error is not None
    assert said in error
    assert after == before


def test_weights_that_cannot_be_read_change_nothing(tmp_path: Path) -> None:
    device = open_paged(make_folder(tmp_path / "old", "llama", initializer_range=0.5))
    before = generate(device, PROMPTS, 4)

    error = reload(device, tmp_path / "absent")
    after = generate(device, PROMPTS, 4)
    device.close()

    assert error is not None
    assert after == before


def test_the_step_that_memory_is_measured_by_computes_padding_alone(folder: Path) -> None:
    from stepahead.gpu.models.opening import open_model

    model = open_model(folder, "float32")
    assert model.fast is not None
    config, source = model.fast
    weights = load_decoder_weights(config, Weights(source, torch.float32))
    options = DeviceOptions(
        model="", max_num_batched_tokens=24, num_slots=8, block_size=4, num_blocks=3
    )

    logits = padding_step(options, config, weights, TorchOps(), 64)()

    assert logits.shape == (8, VOCAB)
