"""The deterministic option: every logit has the same bits alone and in any batch and chunks."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepahead import Engine, EngineConfig, Result, SamplingParams
from stepahead.actors.backend import Backend
from stepahead.actors.text.toy import ToyTokenizer
from stepahead.gpu.cpu import open_cpu_device
from stepahead.gpu.models.opening import open_model
from stepahead.gpu.options import DeviceOptions
from stepahead.gpu.slots import SlotTables
from stepahead.gpu.tiles import TiledModel
from stepahead.gpu.torch_model import make_tensor_kv
from stepahead.messages import ConfigError

from .device_driver import make_plan, make_row
from .tiny_models import VOCAB, make_folder

SLOTS = 3
LENGTH = 28
BLOCK_SIZE = 4
KINDS = ("float32", "bfloat16", "generic", "window")


class Runs:
    """One model, and sequences whose logits are known from having run alone, a token a step."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        dtype = "bfloat16" if kind == "bfloat16" else "float32"
        model = open_model(folder, dtype, generic=kind == "generic")
        rng = np.random.default_rng(3)
        self.sequences = rng.integers(0, VOCAB, (SLOTS, LENGTH)).tolist()
        num_blocks = LENGTH // BLOCK_SIZE
        self.kv = make_tensor_kv(
            model.layers, dtype, num_blocks=SLOTS * num_blocks, block_size=BLOCK_SIZE
        )
        self.model = TiledModel(model.build(64), self.kv)
        self.tables = SlotTables(SLOTS, LENGTH, BLOCK_SIZE)
        blocks = rng.permutation(SLOTS * num_blocks).reshape(SLOTS, -1).tolist()
        self.rows = [make_row(slot, self.sequences[slot], blocks[slot]) for slot in range(SLOTS)]
        self.alone = {
            (slot, position): self.run([(slot, position, 1)])[slot, position]
            for slot in range(SLOTS)
            for position in range(LENGTH)
        }

    def run(self, rows: list[tuple[int, int, int]]) -> dict[tuple[int, int], bytes]:
        """The bits of the logits behind every token of a step of (slot, start, length)."""
        plan = make_plan(1, [(*row, True) for row in rows], self.rows)
        self.tables.apply(plan)
        self.model.logits(plan, self.tables)
        places = [(slot, start + n) for slot, start, length in rows for n in range(length)]
        logits = self.model.logits_behind(np.arange(len(places)))
        return {place: own.tobytes() for place, own in zip(places, logits, strict=True)}


@pytest.fixture(scope="module", params=KINDS)
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runs]:
    changes = {"initializer_range": 0.5, "hidden_size": 48, "head_dim": 24}
    kind = "mistral" if request.param == "window" else "llama"
    if kind == "mistral":
        changes["sliding_window"] = 7
    folder = make_folder(tmp_path_factory.mktemp("model"), kind, **changes)
    with torch.inference_mode():
        yield Runs(folder, request.param)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_logit_has_the_bits_it_has_alone(runs: Runs, data: st.DataObject) -> None:
    """Random steps over some sequences: chunks of any size, in any order and company, and back to
    an earlier position as after a preemption."""
    done = [0] * SLOTS
    for _ in range(data.draw(st.integers(1, 5))):
        rows = []
        for slot in data.draw(st.permutations(range(SLOTS)))[: data.draw(st.integers(1, SLOTS))]:
            if data.draw(st.integers(0, 9)) == 0:
                done[slot] = data.draw(st.integers(0, done[slot]))  # preempted
            length = min(data.draw(st.integers(1, 24)), LENGTH - done[slot])
            if length:
                rows.append((slot, done[slot], length))
                done[slot] += length
        if rows:
            for place, bits in runs.run(rows).items():
                assert bits == runs.alone[place], f"other bits at {place} of {rows}"


def test_the_tile_holds_several_tokens_here(runs: Runs) -> None:
    assert runs.model.tile > 1


def test_logits_are_those_of_transformers_but_for_rounding(runs: Runs) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(runs.folder, dtype=torch.float32)
    expected = model(torch.tensor(runs.sequences)).logits
    apart = [
        (torch.frombuffer(bytearray(bits), dtype=torch.float32) - expected[place]).abs().mean()
        for place, bits in runs.alone.items()
    ]
    near = 1e-4 if runs.kv.keys[0].dtype == torch.float32 else 0.2  # logits go from about -8 to 8
    assert torch.stack(apart).mean() < near


def test_long_sequences_have_the_same_bits_in_other_chunks(tmp_path: Path) -> None:
    """Over several of the runs of positions that attention works on at once."""
    length, size = 1_100, 12  # a block size that does not divide a run
    folder = make_folder(tmp_path, "llama", max_position_embeddings=length)
    model = open_model(folder, "float32")
    sequence = np.random.default_rng(1).integers(0, VOCAB, length).tolist()
    num_blocks = -(-length // size)
    told = []
    for chunks in ([length], [97] * 11 + [1] * 33):
        kv = make_tensor_kv(model.layers, "float32", num_blocks=num_blocks, block_size=size)
        tiled, tables = TiledModel(model.build(length), kv), SlotTables(1, length, size)
        new_rows = [make_row(0, sequence, range(num_blocks - 1, -1, -1))]
        start, logits = 0, []
        for chunk in chunks:
            plan = make_plan(1, [(0, start, chunk, True)], new_rows)
            tables.apply(plan)
            with torch.inference_mode():
                tiled.logits(plan, tables)
                logits.append(tiled.logits_behind(np.arange(chunk)))
            start += chunk
        told.append(np.concatenate(logits))
    in_one, in_many = told
    assert np.array_equal(in_one, in_many)


def engine_of(folder: Path, **config: object) -> Callable[[], Engine]:
    def make() -> Engine:
        loop = asyncio.get_running_loop()

        def post(call: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(call)

        options = DeviceOptions(
            model=str(folder),
            dtype="float32",
            deterministic=True,
            num_blocks=config["num_blocks"],  # type: ignore[arg-type]  # a number
            block_size=BLOCK_SIZE,
        )
        backend = Backend(
            open_cpu_device(options, post), ToyTokenizer(VOCAB + 512), SamplingParams()
        )
        return Engine(EngineConfig(block_size=BLOCK_SIZE, **config), backend=backend)  # type: ignore[arg-type]

    return make


def test_an_engine_tells_the_same_bits_alone_together_chunked_and_preempted(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "llama", initializer_range=0.5)
    rng = np.random.default_rng(8)
    prompts = [rng.integers(3, VOCAB, n).tolist() for n in (20, 13, 20, 7)]
    params = SamplingParams(
        temperature=1, seed=5, max_tokens=16, ignore_eos=True, logprobs=3, prompt_logprobs=1
    )

    async def said(at_once: bool, **config: object) -> tuple[list[Result], int]:
        config = {"num_blocks": 64, "max_num_seqs": 4, **config}
        async with engine_of(folder, **config)() as engine:
            if at_once:
                results = await asyncio.gather(*(engine.generate(p, params) for p in prompts))
            else:
                results = [await engine.generate(p, params) for p in prompts]
            return list(results), sum(result.timings.preemptions for result in results)

    alone, _ = asyncio.run(said(False, prefix_caching=False))
    for config in (
        {},
        {"max_num_batched_tokens": 5},
        {"num_blocks": 18, "watermark": 0.0, "prefix_caching": False},
    ):
        together, preemptions = asyncio.run(said(True, **config))
        assert preemptions > 0 or "watermark" not in config
        for one, other in zip(alone, together, strict=True):
            assert one.token_ids == other.token_ids
            assert one.outputs[0].logprobs == other.outputs[0].logprobs
            assert one.prompt_logprobs == other.prompt_logprobs


def test_a_model_without_attention_of_one_shape_is_refused(tmp_path: Path) -> None:
    folder = make_folder(
        tmp_path, "gemma2", head_dim=8, attn_logit_softcapping=20.0, sliding_window=8
    )
    options = DeviceOptions(
        model=str(folder), dtype="float32", num_blocks=8, block_size=4, deterministic=True
    )
    with pytest.raises(ConfigError, match="caps its attention scores"):
        open_cpu_device(options, lambda call: call())
