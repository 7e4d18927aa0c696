"""The native decoder against torch in float32, on the same quantised weights."""

import ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor

from stepahead.gpu import binding
from stepahead.gpu.binding import bind
from stepahead.gpu.cpu import open_cpu_device
from stepahead.gpu.loading.dequantise import dequantise
from stepahead.gpu.models.opening import open_model
from stepahead.gpu.native import compiling, library
from stepahead.gpu.native.compiling import NoCompiler
from stepahead.gpu.native.decoder import NativeDecoder
from stepahead.gpu.native.kv import HalfKV
from stepahead.gpu.native.packing import Blocks, Floats, quantised_4, quantised_8
from stepahead.gpu.options import DeviceOptions
from stepahead.gpu.processor import read_processor
from stepahead.gpu.row_failures import NOT_NUMBERS
from stepahead.gpu.slots import SlotTables
from stepahead.gpu.step_model import ChoosesLikeliest
from stepahead.gpu.verify import sampled_tokens
from stepahead.messages import ConfigError, ModelError

from .device_driver import call_at_once, make_plan, make_row
from .model_runs import LENGTH, MIXED_STEPS, paged_logits, random_sequences
from .tiny_models import FAMILIES, VOCAB, make_folder, make_model, write_gguf

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32}
BLOCK_SIZE = 16

Logits = dict[tuple[int, int], Tensor]


def make_file(folder: Path, kind: Kind, family: str = "llama") -> Path:
    model_type, changes = FAMILIES[family]
    return write_gguf(folder / "model.gguf", make_model(model_type, **(changes | SIZES)), kind)


# Steps of few tokens are computed exactly, but for the rounding of activations to 12 or 15 bits;
# those of many may go through bfloat16. Both against the scale of the logits, over two layers.
ONE_BY_ONE = [[(s, start, 1)] for s in range(3) for start in range(LENGTH)]
EXACT, BFLOAT16 = 0.003, 0.03


def native_logits(
    path: Path,
    steps: list[list[tuple[int, int, int]]] = MIXED_STEPS,
    *,
    deterministic: bool = False,
) -> Logits:
    return paged_logits(
        path,
        random_sequences(VOCAB),
        steps,
        native=True,
        block_size=BLOCK_SIZE,
        deterministic=deterministic,
    )


def torch_logits(path: Path) -> Logits:
    return paged_logits(path, random_sequences(VOCAB), MIXED_STEPS)


def share_of_scale(logits: Logits, reference: Logits) -> float:
    """The largest difference, as a share of the largest logit."""
    scale = max(row.abs().max().item() for row in reference.values())
    return max((logits[at] - reference[at]).abs().max().item() for at in reference) / scale


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0])
def test_weights_are_computed_as_the_file_packs_them(kind: Kind, tmp_path: Path) -> None:
    path = make_file(tmp_path, kind)

    reference = torch_logits(path)

    assert share_of_scale(native_logits(path, ONE_BY_ONE), reference) < EXACT
    assert share_of_scale(native_logits(path), reference) < BFLOAT16


@pytest.mark.parametrize("kind", [Kind.F16, Kind.Q5_0])
def test_other_weights_are_kept_in_eight_bits(kind: Kind, tmp_path: Path) -> None:
    path = make_file(tmp_path, kind)

    assert share_of_scale(native_logits(path), torch_logits(path)) < 0.1


@pytest.mark.parametrize(
    "family", ["llama-tied", "llama-biases", "llama-one-kv-head", "qwen2", "qwen3", "rope-linear"]
)
def test_every_family_gives_what_torch_gives(family: str, tmp_path: Path) -> None:
    path = make_file(tmp_path, Kind.Q8_0, family)

    reference = torch_logits(path)

    assert share_of_scale(native_logits(path, ONE_BY_ONE), reference) < EXACT
    assert share_of_scale(native_logits(path), reference) < BFLOAT16


def test_deterministic_logits_do_not_depend_on_batch_or_chunks(tmp_path: Path) -> None:
    path = make_file(tmp_path, Kind.Q4_1)
    whole = [[(0, 0, 32), (1, 0, 32), (2, 0, 32)]]

    one_by_one = native_logits(path, ONE_BY_ONE, deterministic=True)

    for steps in (MIXED_STEPS, whole):
        together = native_logits(path, steps, deterministic=True)
        assert all(torch.equal(row, one_by_one[at]) for at, row in together.items())


def test_deterministic_logits_behind_a_window_do_not_depend_on_chunks(tmp_path: Path) -> None:
    path = make_folder(tmp_path, "mistral", sliding_window=150, **SIZES)
    first, end = (
        240,
        246,
    )  # the last one sees from a strip of 16 on that the first does not begin with
    tails = [
        [[(0, first, end - first)]],
        [[(0, first, 3)], [(0, first + 3, end - first - 3)]],
        [[(0, at, 1)] for at in range(first, end)],
    ]

    found = [
        paged_logits(
            path,
            random_sequences(VOCAB, 1, end),
            [[(0, 0, first)], *tail],
            native=True,
            block_size=BLOCK_SIZE,
            deterministic=True,
        )[0, end - 1]
        for tail in tails
    ]

    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def quantised_folder(folder: Path, model: Any) -> Path:
    """A model whose matrices are what 8 bits hold, which the native decoder then keeps."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                blocks = quantised_8(parameter.numpy())
                values = dequantise(blocks.data, blocks.kind).reshape(parameter.shape)
                parameter.copy_(torch.from_numpy(values))
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("window", [None, 40], ids=["whole", "window"])
@pytest.mark.parametrize("num_kv_heads", [1, 6])
def test_sizes_that_fill_no_panel_and_no_pass_give_what_torch_gives(
    num_kv_heads: int, window: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "default_threads", lambda: 3)
    changes = {"num_attention_heads": 12, "num_key_value_heads": num_kv_heads}
    sizes = {"hidden_size": 96, "intermediate_size": 32, "head_dim": 96, "vocab_size": 99}
    model = make_model("mistral", sliding_window=window, **changes, **sizes)
    path = quantised_folder(tmp_path, model)
    sequences = random_sequences(99, 20, 150)
    steps = [
        [(0, 0, 1)],
        [(0, 1, 16), (1, 0, 33)],
        [(0, 17, 100), (1, 33, 1)],
        [(0, 117, 33), *((s, 0, 1) for s in range(2, 20))],
    ]

    native = paged_logits(path, sequences, steps, native=True, block_size=48)

    assert share_of_scale(native, paged_logits(path, sequences, steps)) < BFLOAT16


def test_keys_that_float16_cannot_hold_are_the_largest_that_it_can_in_every_step(
    tmp_path: Path,
) -> None:
    model = make_model("llama", attention_bias=True, **SIZES)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.k_proj.weight.zero_()
            layer.self_attn.k_proj.bias.copy_(torch.full((64,), 1e5))
            layer.self_attn.q_proj.weight *= 2**-14
            layer.self_attn.q_proj.bias *= 2**-14
    path = write_gguf(tmp_path / "model.gguf", model, Kind.Q8_0)

    one_by_one = native_logits(path, ONE_BY_ONE)
    many = native_logits(path)

    assert share_of_scale(many, {at: one_by_one[at] for at in many}) < BFLOAT16


def test_weights_that_are_too_large_for_tiles_are_computed_without(tmp_path: Path) -> None:
    model = make_model("llama", **SIZES)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.input_layernorm.weight *= 2**-14
            for name in "qkv":
                getattr(layer.self_attn, f"{name}_proj").weight.mul_(2**14)
    path = write_gguf(tmp_path / "model.gguf", model, Kind.Q8_0)

    assert share_of_scale(native_logits(path), torch_logits(path)) < EXACT


def logits_behind_a_prefix(path: Path, *, is_shared: bool) -> Logits:
    """Of many rows behind a prefix of 9 blocks, which is the same memory for all or their own."""
    count, prefix, length = 17, 9 * BLOCK_SIZE, 10 * BLOCK_SIZE
    own = random_sequences(VOCAB, count, length)
    who = [0] if is_shared else range(count)
    return paged_logits(
        path,
        [own[0][:prefix] + tokens[prefix:] for tokens in own],
        [
            [(s, 0, prefix) for s in who],
            [(s, prefix, 3) for s in range(count)],
            *([(s, at, 1) for s in range(count)] for at in range(prefix + 3, length)),
        ],
        native=True,
        block_size=BLOCK_SIZE,
        shared=9 if is_shared else 0,
    )


@pytest.mark.parametrize("window", [None, 6], ids=["whole", "window"])
def test_rows_that_share_a_prefix_attend_to_it_as_if_it_were_their_own(
    window: int | None, tmp_path: Path
) -> None:
    path = make_folder(tmp_path, "mistral", sliding_window=window, **SIZES)

    once = logits_behind_a_prefix(path, is_shared=True)
    each = logits_behind_a_prefix(path, is_shared=False)

    assert share_of_scale(once, {at: each[at] for at in once}) < BFLOAT16


@pytest.mark.parametrize("num_rows", [3, 20], ids=["few", "many"])
def test_the_likeliest_tokens_are_those_of_the_highest_logits(
    num_rows: int, tmp_path: Path
) -> None:
    model = open_model(make_file(tmp_path, Kind.Q4_1), "float32")
    kv = HalfKV(model.layers, num_blocks=num_rows, block_size=BLOCK_SIZE)
    for memory in (*kv.keys, *kv.values):
        memory.fill(np.nan)
    tables = SlotTables(num_rows, BLOCK_SIZE, BLOCK_SIZE)
    tokens = random_sequences(VOCAB, num_rows, 9)
    new_rows = [make_row(slot, tokens[slot], [slot]) for slot in range(num_rows)]
    unwritten = num_rows - 1  # its last token sees positions that nobody has written
    rows = [(slot, 0, 9, True) for slot in range(unwritten)] + [(unwritten, 8, 1, True)]
    plan = make_plan(0, rows, new_rows)
    tables.apply(plan)
    bound = bind(model, BLOCK_SIZE, kv)
    assert isinstance(bound, ChoosesLikeliest)

    logits = bound.logits(plan, tables).copy()
    token_ids = bound.likeliest(plan, tables)
    bound.close()

    assert token_ids[:unwritten].tolist() == logits[:unwritten].argmax(axis=-1).tolist()
    assert token_ids[unwritten] == NOT_NUMBERS


def bind_threads(path: Path, kv_blocks: int, threads: int) -> NativeDecoder:
    """A decoder with so many threads, for sequences of two blocks."""
    model = open_model(path, "float32")
    assert model.fast is not None
    kv = HalfKV(model.layers, num_blocks=kv_blocks, block_size=BLOCK_SIZE)
    return NativeDecoder(*model.fast, kv, 2 * BLOCK_SIZE, threads)


def two_block_tables(num_slots: int, vocab: int = VOCAB) -> SlotTables:
    """Every slot with a sequence of its own."""
    tables = SlotTables(num_slots, 2 * BLOCK_SIZE, BLOCK_SIZE)
    tokens = random_sequences(vocab, num_slots, 2 * BLOCK_SIZE)
    rows = [make_row(slot, tokens[slot], [2 * slot, 2 * slot + 1]) for slot in range(num_slots)]
    tables.apply(make_plan(0, [], rows))
    return tables


def test_of_equal_logits_the_first_token_wins_whichever_thread_finds_it(tmp_path: Path) -> None:
    vocab, count = 4096, 5
    model = make_model("llama", vocab_size=vocab, **SIZES)
    with torch.no_grad():
        half = vocab // 2
        model.lm_head.weight[half:] = model.lm_head.weight[:half]
    path = write_gguf(tmp_path / "model.gguf", model, Kind.Q4_1)
    tables = two_block_tables(count, vocab)
    bound = bind_threads(path, 2 * count, threads=3)

    for step in range(40):
        plan = make_plan(step, [(slot, step % 30, 1, True) for slot in range(count)])
        likeliest = bound.logits(plan, tables).argmax(axis=-1)
        assert bound.likeliest(plan, tables).tolist() == likeliest.tolist()
        assert (likeliest < half).all()
    bound.close()


def test_a_step_samples_behind_the_last_token_of_a_row_and_behind_those_before_its_drafts(
    tmp_path: Path,
) -> None:
    tables = two_block_tables(5)
    bound = bind_threads(make_file(tmp_path, Kind.Q4_1), 10, threads=2)
    rows = [(4, 0, 3, True), (0, 0, 4, False), (3, 0, 5, True), (1, 0, 1, True)]
    plan = make_plan(0, rows, drafts=[[], [], [7, 8], []])
    tables.apply(plan)

    logits = bound.logits(plan, tables).copy()
    behind = bound.logits_behind(sampled_tokens(plan))
    likeliest = bound.likeliest(plan, tables)
    bound.close()

    assert len(logits) == 5
    assert np.array_equal(logits, behind)
    assert likeliest.tolist() == logits.argmax(axis=-1).tolist()


@pytest.mark.parametrize(
    ("slot", "start", "length"),
    [(2, 0, 1), (-1, 0, 1), (0, -1, 1), (0, 2 * BLOCK_SIZE, 1), (0, 1, 2 * BLOCK_SIZE)],
)
def test_a_row_outside_of_the_tables_is_refused_and_costs_its_step_alone(
    slot: int, start: int, length: int, tmp_path: Path
) -> None:
    tables = two_block_tables(2)
    bound = bind_threads(make_file(tmp_path, Kind.Q4_1), 4, threads=2)
    before = bound.likeliest(make_plan(0, [(0, 0, 9, True)]), tables)

    with pytest.raises(IndexError, match="outside"):
        bound.likeliest(make_plan(1, [(1, 0, 1, True), (slot, start, length, True)]), tables)
    after = bound.likeliest(make_plan(2, [(0, 0, 9, True)]), tables)
    bound.close()

    assert after.tolist() == before.tolist()


SMALL_STACKS = """
import ctypes, sys
from pathlib import Path
from stepahead.gpu.models.opening import open_model
from stepahead.gpu.native.decoder import NativeDecoder
from stepahead.gpu.native.kv import HalfKV
from stepahead.gpu.slots import SlotTables
from tests.device_driver import make_plan, make_row

system, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(256)
system.pthread_attr_init(attributes)
system.pthread_attr_setstacksize(attributes, ctypes.c_size_t(128 << 10))
system.pthread_setattr_default_np(attributes)
model = open_model(Path(sys.argv[1]), "float32")
decoder = NativeDecoder(*model.fast, HalfKV(model.layers, num_blocks=25, block_size=16), 400, 3)
tables = SlotTables(1, 400, 16)
plan = make_plan(0, [(0, 0, 400, True)], [make_row(0, [1] * 400, range(25))])
tables.apply(plan)
print(len(decoder.likeliest(plan, tables)))
"""


def test_threads_have_room_where_the_system_gives_little(tmp_path: Path) -> None:
    if not hasattr(ctypes.CDLL(None), "pthread_setattr_default_np"):
        pytest.skip("what the system gives cannot be changed")
    path = make_file(tmp_path, Kind.Q4_1)

    done = subprocess.run(
        [sys.executable, "-c", SMALL_STACKS, path], capture_output=True, text=True, timeout=120
    )

    assert done.stdout == "1\n", done


def known_features() -> frozenset[str]:
    return read_processor().features


@pytest.fixture(params=[(), ("-mavx2", "-mfma", "-mf16c")], ids=["any", "avx2"])
def build(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], bool]]:
    """Makes the library that of a lesser processor; says whether that counts as fast."""
    features: tuple[str, ...] = request.param
    if not {feature.removeprefix("-m") for feature in features} <= known_features():
        pytest.skip("the processor has no AVX2")

    def use() -> bool:
        flags = tuple(flag for flag in compiling.FLAGS if flag not in ("-march=native", "-O3"))
        monkeypatch.setattr(compiling, "FLAGS", flags + features)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        library.load_library.cache_clear()
        return bool(features)

    yield use
    library.load_library.cache_clear()


def test_a_build_for_another_processor_gives_what_torch_gives(
    build: Callable[[], bool], tmp_path: Path
) -> None:
    path = make_file(tmp_path, Kind.Q4_1)
    reference = torch_logits(path)

    is_fast = build()
    one_by_one = native_logits(path, ONE_BY_ONE)
    many = native_logits(path)

    assert (library.load_library().stepahead_rate() > 0) == is_fast
    assert share_of_scale(one_by_one, reference) < EXACT
    assert share_of_scale(many, reference) < EXACT


def test_without_tiles_logits_are_the_same_bits_in_any_batch(
    build: Callable[[], bool], tmp_path: Path
) -> None:
    path = make_file(tmp_path, Kind.Q4_1)
    build()

    alone = native_logits(path, ONE_BY_ONE)
    together = native_logits(path)
    sharing = logits_behind_a_prefix(path, is_shared=True)
    apart = logits_behind_a_prefix(path, is_shared=False)

    assert all(torch.equal(row, alone[at]) for at, row in together.items())
    assert all(torch.equal(row, apart[at]) for at, row in sharing.items())


def test_a_compiler_that_knows_no_float16_arithmetic_gives_the_same_tokens_in_tiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not {"amx_bf16", "avx512_fp16"} <= known_features():
        pytest.skip("the processor has no matrix tiles")
    path = make_file(tmp_path, Kind.Q4_1)
    tuned = native_logits(path)
    monkeypatch.setattr(compiling, "FLAGS", (*compiling.FLAGS, "-mno-avx512fp16"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library.load_library.cache_clear()

    older = native_logits(path)

    library.load_library.cache_clear()
    assert share_of_scale(older, tuned) < BFLOAT16


def open_facts(path: Path, **options: Any) -> tuple[str, int]:
    """What the device computes in, and the context it gives."""
    device = open_cpu_device(DeviceOptions(model=str(path), num_blocks=8, **options), call_at_once)
    try:
        return device.facts.dtype, device.facts.max_model_len
    finally:
        device.close()


def test_gguf_weights_run_as_they_are_unless_something_else_is_asked_for(tmp_path: Path) -> None:
    path = make_file(tmp_path, Kind.Q4_1)

    assert open_facts(path)[0] == "quantised"
    assert open_facts(path, quantization="none")[0] != "quantised"
    assert open_facts(path, dtype="float32")[0] == "float32"
    assert open_facts(path, block_size=4)[0] != "quantised"


@pytest.mark.parametrize(("quantization", "bits"), [("int8", 8), ("int4", 4)])
def test_a_folder_of_plain_weights_can_be_quantised(
    quantization: str, bits: int, tmp_path: Path
) -> None:
    path = make_folder(tmp_path, "llama", **SIZES)

    logits = paged_logits(
        path,
        random_sequences(VOCAB),
        MIXED_STEPS,
        native=True,
        block_size=BLOCK_SIZE,
        bits=bits,
    )

    assert open_facts(path, quantization=quantization)[0] == "quantised"
    assert open_facts(path)[0] != "quantised"
    if bits == 8:
        assert 0 < share_of_scale(logits, torch_logits(path)) < 0.1


@pytest.mark.parametrize(
    ("quantise", "levels"), [(quantised_8, 2 * 127), (quantised_4, 15)], ids=["8", "4"]
)
def test_no_number_is_moved_by_more_than_half_a_step(
    quantise: Callable[[Floats], Blocks], levels: int
) -> None:
    values = np.random.default_rng(1).normal(size=(8, 64)).astype(np.float32)
    values[0, :32] = 3.0  # a group without any spread

    blocks = quantise(values)

    groups = values.reshape(-1, 32)
    moved = np.abs(dequantise(blocks.data, blocks.kind).reshape(-1, 32) - groups)
    if levels == 15:
        steps = (groups.max(axis=1) - groups.min(axis=1)) / levels
    else:
        steps = 2 * np.abs(groups).max(axis=1) / levels
    assert (moved.max(axis=1) <= 0.5 * steps + 0.004).all()  # and what float16 scales cost


def test_quantisation_that_cannot_be_had_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = make_folder(tmp_path, "llama", **SIZES)

    with pytest.raises(ConfigError, match="block_size 4"):
        open_facts(path, quantization="int8", block_size=4)
    with pytest.raises(ConfigError, match="dtype float32"):
        open_facts(path, quantization="int8", dtype="float32")


def test_without_a_compiler_torch_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_file(tmp_path, Kind.Q4_1)
    monkeypatch.setenv("CC", "/no/such/compiler")
    library.load_library.cache_clear()

    try:
        assert open_facts(path)[0] != "quantised"
    finally:
        library.load_library.cache_clear()


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "broken.c"
    source.write_text("this is not C\n")
    monkeypatch.setattr(compiling, "SOURCE", source)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    with pytest.raises(NoCompiler, match="error"):
        compiling.compiled_library()

    assert list(compiling.cache_folder().iterdir()) == []


def test_a_library_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "small.c"
    source.write_text("int one(void) { return 1; }\n")
    monkeypatch.setattr(compiling, "SOURCE", source)
    first = compiling.compiled_library()
    made = first.stat().st_mtime_ns

    assert compiling.compiled_library() == first
    assert first.stat().st_mtime_ns == made
    source.write_text("int one(void) { return 2; }\n")
    assert compiling.compiled_library() != first


def test_a_file_that_lacks_a_tensor_is_refused_by_its_name(tmp_path: Path) -> None:
    model = make_model("llama", **SIZES)
    path = write_gguf(tmp_path / "model.gguf", model, Kind.Q8_0)
    data = path.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight")
    path.write_bytes(data)

    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj"):
        open_facts(path)
