"""Every path through a model gives the logits of transformers' plain forward pass."""

from pathlib import Path

import pytest
from gguf import GGMLQuantizationType
from safetensors.torch import load_file, save_file

from stepahead.gpu.loading.gguf_file import GgufFile
from stepahead.gpu.models.config import config_of_folder, has_fast_path, read_config
from stepahead.gpu.models.gguf_config import config_of_gguf
from stepahead.gpu.models.llama import LlamaDecoder
from stepahead.gpu.models.opening import open_model
from stepahead.gpu.models.rope import RopeConfig
from stepahead.messages import ModelError

from .model_runs import (
    MIXED_STEPS,
    paged_logits,
    plain_logits,
    random_sequences,
    worst_difference,
)
from .tiny_models import FAMILIES, VOCAB, make_folder, make_model, write_gguf

TOLERANCE = 1e-4


@pytest.mark.parametrize("name", FAMILIES)
def test_fast_and_generic_paths_give_the_logits_of_the_plain_forward_pass(
    name: str, tmp_path: Path
) -> None:
    family, changes = FAMILIES[name]
    folder = make_folder(tmp_path, family, **changes)
    sequences = random_sequences(VOCAB)
    reference = plain_logits(folder, sequences)

    fast = paged_logits(folder, sequences, MIXED_STEPS)
    generic = paged_logits(folder, sequences, MIXED_STEPS, generic=True)

    assert has_fast_path(read_config(folder))
    assert worst_difference(fast, reference) < TOLERANCE
    assert worst_difference(generic, reference) < TOLERANCE
    assert reference.std() > 0.3  # the models are not trivial


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("gemma2", {"head_dim": 8, "sliding_window": 6, "attn_logit_softcapping": 5.0}),
        ("gpt_neox", {}),
        ("olmo2", {}),
        ("gpt_oss", {"head_dim": 8, "num_local_experts": 4, "sliding_window": 6}),
    ],
)
def test_other_decoders_run_through_transformers(
    family: str, changes: dict[str, object], tmp_path: Path
) -> None:
    folder = make_folder(tmp_path, family, **changes)
    sequences = random_sequences(VOCAB)

    logits = paged_logits(folder, sequences, MIXED_STEPS)

    assert not has_fast_path(read_config(folder))
    assert worst_difference(logits, plain_logits(folder, sequences)) < TOLERANCE


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("falcon", {}),
        ("mamba", {"state_size": 4}),
    ],
)
def test_models_without_replaceable_attention_are_refused(
    family: str, changes: dict[str, object], tmp_path: Path
) -> None:
    folder = make_folder(tmp_path, family, **changes)

    with pytest.raises(ModelError):
        open_model(folder, "float32")


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "llama")
    sequences = random_sequences(VOCAB)
    reference = plain_logits(folder, sequences)

    logits = paged_logits(folder, sequences, MIXED_STEPS, dtype="bfloat16")

    assert worst_difference(logits, reference) < 0.05 * reference.abs().max().item()


@pytest.mark.parametrize(
    "name",
    ["llama", "llama-tied", "llama-wide-heads", "llama-biases", "qwen2", "qwen3", "mistral-full"],
)
def test_gguf_gives_the_logits_of_its_safetensors_twin(name: str, tmp_path: Path) -> None:
    family, changes = FAMILIES[name]
    folder = make_folder(tmp_path, family, **changes)
    file = write_gguf(tmp_path / "twin.gguf", make_model(family, **changes))
    sequences = random_sequences(VOCAB)
    reference = plain_logits(folder, sequences)

    fast = paged_logits(file, sequences, MIXED_STEPS)
    generic = paged_logits(file, sequences, MIXED_STEPS[:3], generic=True)

    assert worst_difference(fast, reference) < TOLERANCE
    assert worst_difference(generic, reference) < TOLERANCE


def test_a_quantised_gguf_stays_near_its_twin(tmp_path: Path) -> None:
    model = make_model("llama", intermediate_size=64)
    folder = tmp_path / "folder"
    model.save_pretrained(folder)
    file = write_gguf(tmp_path / "twin.gguf", model, GGMLQuantizationType.Q8_0)
    sequences = random_sequences(VOCAB)
    reference = plain_logits(folder, sequences)

    logits = paged_logits(file, sequences, MIXED_STEPS)

    assert worst_difference(logits, reference) < 0.1 * reference.abs().max().item()


def test_a_gguf_ends_at_its_eos_and_end_of_turn_ids(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", make_model("llama"))

    assert config_of_gguf(GgufFile(file)).eos_token_ids == {2, 5}


def test_eos_is_the_union_of_both_configurations(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "llama")
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')

    assert config_of_folder(folder, read_config(folder)).eos_token_ids == {2, 3, 4}


@pytest.mark.parametrize("is_equal", [True, False])
def test_a_tied_model_whose_files_hold_a_head_loads(is_equal: bool, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "llama", tie_word_embeddings=True)
    weights = load_file(folder / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"]
    weights["lm_head.weight"] = embedding.clone() if is_equal else embedding * 2
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    sequences = random_sequences(VOCAB)

    logits = paged_logits(folder, sequences, MIXED_STEPS)

    assert worst_difference(logits, plain_logits(folder, sequences)) < TOLERANCE


def make_rope(**fields: object) -> RopeConfig:
    return RopeConfig.from_fields(fields, theta=10_000.0, max_positions=4096)


def test_both_spellings_of_a_rope_scaling_are_read_and_a_conflict_is_refused() -> None:
    assert make_rope(rope_type="linear", factor=2.0) == make_rope(type="linear", factor=2.0)
    assert make_rope(rope_type="linear", type="linear", factor=2.0).kind == "linear"
    with pytest.raises(ModelError, match="contradict"):
        make_rope(rope_type="linear", type="yarn", factor=2.0)


def test_an_unknown_rope_scaling_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="'spiral'"):
        make_rope(rope_type="spiral", factor=2.0)


def test_a_context_that_is_already_scaled_is_not_scaled_again() -> None:
    stated = make_rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=1024)
    unstated = make_rope(rope_type="yarn", factor=4.0)
    extended = make_rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=4096)

    assert stated.context_length == 4096
    assert unstated.context_length == 4096
    assert extended.context_length == 16384


def test_missing_shape_fields_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="hidden_size"):
        config_of_folder(tmp_path, {"model_type": "llama"})


def test_an_unused_fast_decoder_is_what_a_llama_folder_opens_as(tmp_path: Path) -> None:
    model = open_model(make_folder(tmp_path, "llama"), "float32")

    assert isinstance(model.build(64), LlamaDecoder)
    assert model.context_length == 64
