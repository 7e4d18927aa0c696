"""What a device tells of its logits to rows that asked: of samples and prompts."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from stepahead.gpu import logprobs as logprobs_module
from stepahead.gpu.cpu import CpuDevice, open_cpu_device
from stepahead.gpu.logprobs import Entries, likeliest, log_softmax_at
from stepahead.gpu.options import DeviceOptions
from stepahead.gpu.oracle import Oracle
from stepahead.gpu.runner import StepRunner
from stepahead.gpu.simulated import SimulatedDevice
from stepahead.messages import Floats, LogprobsWanted, Longs, StepDone

from .device_driver import Driver, call_at_once, make_plan, make_row
from .engines import make_config, make_facts
from .tiny_models import VOCAB, make_folder

PROMPT = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26]
ASKED = (7, 90)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes = {"initializer_range": 0.5, "hidden_size": 64, "intermediate_size": 64}
    return make_folder(tmp_path_factory.mktemp("model"), "llama", head_dim=32, **changes)


def open_device(folder: Path, kind: str) -> CpuDevice:
    """`kind` names one of the three ways that a model is computed."""
    options = DeviceOptions(
        model=str(folder),
        num_blocks=16,
        block_size=16,
        generic=kind == "generic",
        deterministic=kind == "native",  # else many tokens are multiplied in bfloat16
        **({"quantization": "int8"} if kind == "native" else {"dtype": "float32"}),  # type: ignore[arg-type]
    )
    return open_cpu_device(options, call_at_once)


def wanted(top: int = 2) -> LogprobsWanted:
    return LogprobsWanted(top, ASKED, prompt_top=top, prompt_start=1, prompt_end=len(PROMPT))


def run_prompt(
    driver: Driver, wants: LogprobsWanted | None, chunk: int, **changes: object
) -> list[StepDone]:
    """The prompt in chunks, the last of which samples, in slot 0."""
    new_rows = [make_row(0, PROMPT, [4], logprobs=wants, **changes)]
    results = []
    for start in range(0, len(PROMPT), chunk):
        length = min(chunk, len(PROMPT) - start)
        is_last = start + length == len(PROMPT)
        results.append(driver.run([(0, start, length, is_last)], new_rows))
        new_rows = []
    return results


def entries(results: Sequence[StepDone]) -> dict[int, list[tuple[int, float, int]]]:
    """(id, logprob, rank) of every entry's ids, by position."""
    told: dict[int, list[tuple[int, float, int]]] = {}
    for logprobs in (result.logprobs for result in results):
        if logprobs is None:
            continue
        columns = zip(
            logprobs.token_ids.tolist(),
            logprobs.values.tolist(),
            logprobs.ranks.tolist(),
            strict=True,
        )
        pairs = (logprobs.positions.tolist(), logprobs.counts.tolist())
        for position, count in zip(*pairs, strict=True):
            assert position not in told
            told[position] = [next(columns) for _ in range(count)]
    return told


@pytest.mark.parametrize("kind", ["fast", "generic"])
@pytest.mark.parametrize("chunk", [len(PROMPT), 5])
def test_logprobs_of_prompt_and_samples_are_those_of_transformers(
    folder: Path, kind: str, chunk: int
) -> None:
    from transformers import AutoModelForCausalLM

    device = open_device(folder, kind)
    driver = Driver(device)
    results = run_prompt(driver, wanted(), chunk)
    ids = [*PROMPT, int(results[-1].token_ids[0])]
    for _ in range(4):
        results.append(driver.run([(0, len(ids) - 1, 1, True)]))
        ids.append(int(results[-1].token_ids[0]))
    device.close()

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0].log_softmax(dim=-1)
    told = entries(results)
    assert sorted(told) == list(range(1, len(ids)))
    for position, own in told.items():
        row = expected[position - 1]
        best = row.topk(2).indices.tolist()
        asked = list(ASKED) if position >= len(PROMPT) else []
        assert [token_id for token_id, _, _ in own] == [ids[position], *best, *asked]
        for token_id, value, rank in own:
            assert value == pytest.approx(row[token_id].item(), abs=2e-4)
            assert rank == int((row > row[token_id]).sum()) + 1


@pytest.mark.parametrize("kind", ["fast", "generic", "native"])
def test_a_prompt_never_has_more_logits_at_once_than_a_piece_holds(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs_module, "PIECE", 3 * VOCAB)
    seen: list[int] = []
    behind = StepRunner._logits_behind

    def watched(self: StepRunner, tokens: Longs) -> Floats:
        seen.append(len(tokens))
        return behind(self, tokens)

    monkeypatch.setattr(StepRunner, "_logits_behind", watched)
    device = open_device(folder, kind)
    in_pieces = entries(run_prompt(Driver(device), wanted(), len(PROMPT)))
    in_chunks = entries(run_prompt(Driver(device), wanted(), 2))
    device.close()
    assert max(seen) == 3
    assert sorted(in_pieces) == sorted(in_chunks)
    for position, own in in_pieces.items():
        for one, other in zip(own, in_chunks[position], strict=True):
            assert one[0::2] == other[0::2]
            assert one[1] == pytest.approx(other[1], abs=0 if kind == "native" else 1e-4)


def test_what_is_banned_is_told_as_the_model_said_it(folder: Path) -> None:
    device = open_device(folder, "fast")
    free = run_prompt(Driver(device), wanted(), len(PROMPT))[-1]
    best = int(free.token_ids[0])
    banned = run_prompt(Driver(device), wanted(), len(PROMPT), min_end=99, banned_ids=(best,))[-1]
    device.close()
    assert int(banned.token_ids[0]) != best
    told = entries([banned])[len(PROMPT)]
    assert told[0][0] == int(banned.token_ids[0])
    assert told[1] == entries([free])[len(PROMPT)][1]
    assert told[0][2] == 2  # the second likeliest, and told as that


def test_a_row_whose_logits_are_not_numbers_fails_and_is_told_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = StepRunner._logits_behind

    def spoiled(runner: StepRunner, tokens: Longs) -> Floats:
        logits = behind(runner, tokens)
        logits[tokens == 6] = np.nan  # behind the seventh of the step's tokens
        return logits

    monkeypatch.setattr(StepRunner, "_logits_behind", spoiled)
    device = open_device(folder, "fast")
    driver = Driver(device)
    result = run_prompt(driver, wanted(), len(PROMPT))[-1]
    device.close()

    assert [failed.row for failed in result.failed] == [0]
    assert "not numbers" in result.failed[0].error
    assert 7 not in entries([result])


def test_every_draft_that_counts_is_told_of(folder: Path) -> None:
    device = open_device(folder, "fast")
    driver = Driver(device)
    results = run_prompt(driver, wanted(), len(PROMPT))
    said = [int(results[-1].token_ids[0])]
    for _ in range(4):
        results.append(driver.run([(0, len(PROMPT) + len(said) - 1, 1, True)]))
        said.append(int(results[-1].token_ids[0]))
    plain = entries(results)

    drafted = run_prompt(driver, wanted(), len(PROMPT))
    drafts = [said[1], said[2], (said[3] + 1) % VOCAB]
    drafted.append(driver.run([(0, len(PROMPT), 4, True)], drafts=[drafts]))
    device.close()
    told = entries(drafted)
    assert sorted(told) == [*range(1, len(PROMPT) + 4)]
    for position, own in told.items():
        assert [e[0::2] for e in own] == [e[0::2] for e in plain[position]]
        assert [e[1] for e in own] == pytest.approx([e[1] for e in plain[position]], abs=1e-4)


def test_who_does_not_ask_is_told_nothing_and_changes_nothing(folder: Path) -> None:
    device = open_device(folder, "fast")
    driver = Driver(device)
    asking = run_prompt(driver, wanted(), len(PROMPT))[-1]
    beside = driver.run(
        [(0, 0, len(PROMPT), True), (1, 0, len(PROMPT), True)],
        [make_row(0, PROMPT, [4], logprobs=wanted()), make_row(1, PROMPT, [5])],
    )
    alone = driver.run([(1, 0, len(PROMPT), True)], [make_row(1, PROMPT, [5])])
    device.close()
    assert alone.logprobs is None
    assert beside.logprobs is not None
    assert set(beside.logprobs.owners.tolist()) == {0}
    assert asking.token_ids.tolist() == alone.token_ids.tolist()


def test_a_slot_that_asked_before_does_not_ask_for_its_next_owner(folder: Path) -> None:
    device = open_device(folder, "fast")
    driver = Driver(device)
    run_prompt(driver, wanted(), len(PROMPT))
    result = run_prompt(driver, None, len(PROMPT))[-1]
    device.close()
    assert result.logprobs is None


def test_the_likeliest_are_ordered_and_of_equals_the_smaller_id_comes_first() -> None:
    logits = np.array([1.0, 3.0, 2.0, 3.0, -np.inf, 2.0], dtype=np.float32)
    assert likeliest(logits, 3).tolist() == [1, 3, 2]
    assert likeliest(logits, 6).tolist() == [1, 3, 2, 5, 0, 4]
    assert likeliest(logits, 0).tolist() == []


def test_ranks_count_the_likelier_ones() -> None:
    logits = np.array([1.0, 3.0, 2.0, 3.0, -np.inf, 2.0], dtype=np.float32)
    told = Entries()
    told.add(0, 5, logits, token_id=5, top=3, asked=(4, 1))
    columns = told.seal()
    assert columns is not None
    assert columns.token_ids.tolist() == [5, 1, 3, 2, 4, 1]
    assert columns.ranks.tolist() == [3, 1, 1, 3, 6, 1]
    assert columns.values[4] == -np.inf


def test_a_row_of_a_large_vocabulary_sums_to_one() -> None:
    logits = np.random.default_rng(1).normal(0, 6, 150_000).astype(np.float32)
    values = log_softmax_at(logits, logits).astype(np.float64)
    assert np.exp(values).sum() == pytest.approx(1, abs=1e-6)


def test_the_simulated_device_says_what_its_oracle_thinks_likeliest() -> None:
    facts, oracle = make_facts(make_config(block_size=16, num_blocks=16)), Oracle()
    device = SimulatedDevice(facts, 4, lambda _, call: call(), oracle=oracle)
    new_rows = [make_row(0, PROMPT, [4], logprobs=wanted())]
    result = device.run(make_plan(1, [(0, 0, len(PROMPT), True)], new_rows))
    told = entries([result])
    hashes = oracle.extend(oracle.empty, PROMPT)
    for position in range(1, len(PROMPT) + 1):
        logits = oracle.logits(hashes[position - 1], facts.vocab_size)
        (token_id, value, rank), *others = told[position]
        assert value == pytest.approx(float(log_softmax_at(logits, logits)[token_id]))
        assert rank == int((logits > logits[token_id]).sum()) + 1
        assert others[0][0] == oracle.next_token(hashes[position - 1])
    assert told[12][0][0] == int(result.token_ids[0])
