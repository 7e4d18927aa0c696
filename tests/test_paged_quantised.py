"""The CUDA device's code over matrices of few bits."""

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from stepahead.gpu.loading.weights import Weights
from stepahead.gpu.models.opening import open_model
from stepahead.messages import ConfigError, ModelError

from .device_driver import generate
from .paged_devices import OpaqueOps, TritonOps, one_thread, open_paged  # noqa: F401
from .test_cpu_device import PROMPTS
from .tiny_models import make_folder, make_model, write_gguf

# isort: split
from stepahead.gpu.cuda.matrices import weight_bytes
from stepahead.gpu.cuda.ops import TorchOps
from stepahead.gpu.cuda.quantised import Matrix
from stepahead.gpu.cuda.shapes import RandomWeights, shape_named
from stepahead.gpu.cuda.weights import DecoderWeights, load_decoder_weights
from stepahead.gpu.kernels.int4_linear import Int4Matrix, int4_widened_reference
from stepahead.gpu.kernels.int8_linear import Int8Matrix, int8_widened_reference

SIZES = {"hidden_size": 64, "intermediate_size": 96}
NEAR = {4: 0.08, 8: 0.009}  # of the whole matrix, root mean square
MATRICES = ("qkv", "attention_out", "gate_up", "down")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    return make_folder(path, "llama", initializer_range=0.5, **SIZES)


def load(path: Path, bits: int | None) -> DecoderWeights:
    fast = open_model(path, "float32").fast
    assert fast is not None
    return load_decoder_weights(fast[0], Weights(fast[1], torch.float32), bits=bits)


def widened(matrix: Matrix) -> Tensor:
    if isinstance(matrix, Int4Matrix):
        return int4_widened_reference(matrix, torch.float32)
    if isinstance(matrix, Int8Matrix):
        return int8_widened_reference(matrix, torch.float32)
    return matrix


def matrices_of(weights: DecoderWeights) -> list[Matrix]:
    return [getattr(layer, name) for layer in weights.layers for name in MATRICES]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("is_tied", [False, True])
def test_every_matrix_is_near_what_the_files_hold(bits: int, is_tied: bool, tmp_path: Path) -> None:
    path = make_folder(tmp_path, "llama", tie_word_embeddings=is_tied, **SIZES)
    plain, given = load(path, None), load(path, bits)

    for exact, matrix in zip(matrices_of(plain), matrices_of(given), strict=True):
        assert isinstance(matrix, Int4Matrix if bits == 4 else Int8Matrix)
        near = widened(matrix) - widened(exact)
        assert 0 < near.norm() / widened(exact).norm() < NEAR[bits]
    assert isinstance(given.head, Int8Matrix)  # each token's logit is one row of it
    assert (widened(given.head) - widened(plain.head)).norm() / widened(plain.head).norm() < NEAR[8]
    assert torch.equal(given.embedding, plain.embedding)


@pytest.mark.parametrize(
    ("kind", "bits", "head"),
    [("Q4_0", 4, Int4Matrix), ("Q4_1", 8, Int4Matrix), ("Q8_0", 8, Int8Matrix)],
)
@pytest.mark.parametrize("is_tied", [False, True])
def test_a_files_own_blocks_keep_every_bit_where_they_have_no_more(
    kind: str, bits: int, head: type[object], is_tied: bool, tmp_path: Path
) -> None:
    model = make_model("llama", tie_word_embeddings=is_tied, **SIZES)
    path = write_gguf(tmp_path / "model.gguf", model, GGMLQuantizationType[kind])

    plain, given = load(path, None), load(path, bits)

    for exact, matrix in zip(matrices_of(plain), matrices_of(given), strict=True):
        assert isinstance(matrix, head)
        assert torch.equal(widened(matrix), widened(exact))
    assert isinstance(given.head, head)
    assert torch.equal(widened(given.head), widened(plain.head))


def test_blocks_with_more_bits_than_asked_for_are_quantised(tmp_path: Path) -> None:
    model = make_model("llama", **SIZES)
    path = write_gguf(tmp_path / "model.gguf", model, GGMLQuantizationType.Q8_0)

    given = load(path, 4)

    assert all(isinstance(matrix, Int4Matrix) for matrix in matrices_of(given))
    assert isinstance(given.head, Int8Matrix)


def test_rows_that_are_no_whole_groups_stay_plain(tmp_path: Path) -> None:
    path = make_folder(tmp_path, "llama", hidden_size=64, intermediate_size=40)

    given = load(path, 4)

    assert isinstance(given.layers[0].down, Tensor)
    assert isinstance(given.layers[0].gate_up, Int4Matrix)


@pytest.mark.parametrize("quantization", ["int4", "int8"])
def test_the_device_says_the_same_by_kernels_and_by_references(
    folder: Path, quantization: str
) -> None:
    class Kernels(TorchOps):
        linear = staticmethod(TritonOps.linear)

    said = []
    for ops in (OpaqueOps(), OpaqueOps(Kernels)):
        device = open_paged(folder, ops=ops, dtype="bfloat16", quantization=quantization)
        said.append(generate(device, PROMPTS[:2], 4))
        device.close()

    assert said[0] == said[1]
    assert [len(tokens) for tokens in said[0]] == [4, 4]


def test_other_weights_take_the_place_of_those_there_where_they_are_packed_alike(
    folder: Path, tmp_path: Path
) -> None:
    own, other = load(folder, 4), load(make_folder(tmp_path, "llama", **SIZES), 4)
    before = own.layers[1].down

    own.copy_(other)

    assert own.layers[1].down is before
    assert torch.equal(widened(before), widened(other.layers[1].down))
    with pytest.raises(ModelError, match="matrices are packed in other types"):
        own.copy_(load(folder, 8))
    assert torch.equal(widened(before), widened(other.layers[1].down))


def test_few_bits_need_no_float32(folder: Path) -> None:
    with pytest.raises(ConfigError, match="'int8' takes dtype 'auto' or 'bfloat16', not 'float32'"):
        open_paged(folder, quantization="int8")


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (None, 8.03 * 2),
        (8, 0.525 * 2 + 7.505 * 8.5 / 8),
        (4, 0.525 * 2 + 0.525 * 8.5 / 8 + 6.98 * 5 / 8),
    ],
)
def test_what_weights_take_is_told_before_they_are_loaded(
    bits: int | None, expected: float
) -> None:
    """Of 8.03 billion numbers, of which 0.525 are embeddings and as many are the head."""
    source = RandomWeights(shape_named("llama-3.1-8b"))

    given = weight_bytes(source, torch.bfloat16, bits) / 1e9

    assert given == pytest.approx(expected, abs=0.01)
