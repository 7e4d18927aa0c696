"""Recordings of structured requests: kept they replay by the tokenizer alone; masked they tell
nothing of the structures, and say that they do not replay."""

from dataclasses import replace
from pathlib import Path

import pytest

from stepahead import SamplingParams, StructuredOutput
from stepahead.actors.recording import Recording, explain_request, read_recording, replay
from stepahead.actors.recording.privacy import LEFT_OUT, Tokens, veil_of
from stepahead.actors.recording.structures import grammars_for
from stepahead.actors.recording.writing import write_recording
from stepahead.actors.story import tell
from stepahead.actors.virtual_time import run_virtual
from stepahead.cli.main import main
from stepahead.messages import (
    NO_INTS,
    NO_LONGS,
    DecodeError,
    Ended,
    FinishReason,
    GrammarReady,
    SampleRows,
    StepFailed,
    StepPlan,
    TokensReady,
)

from .engines import make_engine

CHOICES = ["the launch is on", "the launch is off", "nobody knows"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recordings") / "structured"
    params = SamplingParams(max_tokens=40, structured_output=StructuredOutput.choice(CHOICES))

    async def run() -> None:
        async with make_engine(record=path) as engine:
            assert (await engine.generate("status?", params, request_id="r")).text in CHOICES
            await engine.generate("and free", SamplingParams(max_tokens=5))

    run_virtual(run())
    return path


def masked(path: Path, tokens: Tokens, tmp_path: Path) -> tuple[bytes, Recording]:
    write_recording(read_recording(path), tmp_path / "veiled", tokens)
    return (tmp_path / "veiled").read_bytes(), read_recording(tmp_path / "veiled")


def test_it_replays_with_the_masks_that_its_tokenizer_gives(recorded: Path) -> None:
    read = read_recording(recorded)

    assert replay(read, grammars=grammars_for(read, None)).difference is None


@pytest.mark.parametrize("tokens", [Tokens.MASKED, Tokens.DROPPED])
def test_without_its_tokens_it_tells_nothing_of_a_structure_and_does_not_replay(
    tokens: Tokens, recorded: Path, tmp_path: Path
) -> None:
    assert b"the launch" in recorded.read_bytes()
    data, read = masked(recorded, tokens, tmp_path)

    assert b"the launch" not in data
    messages = [e.message for heard in read.turns for e in heard.turn.envelopes]
    masks = [m.words for m in messages if isinstance(m, SampleRows)]
    masks += [m.masks.words for m in messages if isinstance(m, StepPlan) and m.masks is not None]
    assert masks
    assert not any(words.any() for words in masks)
    assert "finished: stop" in tell(explain_request(read, "r"))
    with pytest.raises(DecodeError, match="what they had to follow was left out with the tokens"):
        grammars_for(read, None)


def test_what_is_wrong_with_a_structure_is_left_out_and_what_devices_say_stays() -> None:
    veil = veil_of(Tokens.MASKED, 100)
    wrong = veil(GrammarReady(1, "it has a launch code"))
    failed = veil(StepFailed(3, "out of memory"))
    texts = ("token 7 is not what the grammar allows", "out of memory", None)
    ends = tuple(Ended(1, FinishReason.ERROR, error=text) for text in texts)
    told = veil(TokensReady(NO_LONGS, NO_INTS, ended=ends))

    assert wrong == GrammarReady(1, LEFT_OUT)
    assert failed == StepFailed(3, "out of memory")
    assert isinstance(told, TokensReady)
    assert [ended.error for ended in told.ended] == [LEFT_OUT, "out of memory", None]


def test_on_the_command_line_a_recording_asks_for_the_model_whose_tokenizer_it_needs(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read = read_recording(recorded)
    elsewhere = replace(read, header=replace(read.header, device="cpu", model="llama"))
    write_recording(elsewhere, tmp_path / "elsewhere")

    assert main(["replay", str(recorded)]) == 0
    assert main(["replay", str(tmp_path / "elsewhere")]) == 2

    assert "they were asked of, llama, with --model" in capsys.readouterr().err
