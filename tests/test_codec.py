"""Every message survives the wire, and nothing else comes off it."""

import random
from typing import get_args

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepahead.messages import (
    Abort,
    Adjustments,
    AdmitSequence,
    Admitted,
    BlocksReserved,
    BlocksSettled,
    ChatFormat,
    Copies,
    DeadlineReached,
    DecodeError,
    Delta,
    Drafts,
    Ended,
    Finished,
    FinishReason,
    ForgetPrefixes,
    ForgetUnused,
    FullBlocks,
    Generate,
    GrammarReady,
    Grant,
    LoadWeights,
    Logprobs,
    LogprobsWanted,
    Message,
    Pause,
    PinPrefix,
    PositionLogprobs,
    Preempted,
    PrefixAccount,
    PrefixEnd,
    PublishBlocks,
    ReasoningDelta,
    ReleaseBlocks,
    ReloadWeights,
    ReserveBlocks,
    ResetPrefixCache,
    Resume,
    RowFailed,
    RowMasks,
    RowState,
    SampleRows,
    SamplingParams,
    SequenceAdmitted,
    StepDone,
    StepFailed,
    StepPlan,
    StopMatched,
    StructuredOutput,
    TextDelta,
    Timings,
    TokenLogprob,
    TokensReady,
    ToldTokens,
    ToolCallDelta,
    UnpinPrefix,
    UnpublishBlocks,
    Usage,
    WeightsLoaded,
    frozen_ints,
    frozen_longs,
    same,
    seal,
)
from stepahead.messages.codec import decode, encode

INTS = frozen_ints([1, 2, 3])
LONGS = frozen_longs([1, 2, 2**40])
BOOLS = np.array([True, False, True])
seal(BOOLS)
STRUCTURE = StructuredOutput.json_schema({"type": "integer"})
PARAMS = SamplingParams(
    max_tokens=3,
    temperature=0,
    top_p=0.5,
    stop=("a", "b"),
    stop_token_ids=(7,),
    seed=1,
    logit_bias={3: 1.5, 2: float("-inf")},
    allowed_token_ids=(1, 2),
    structured_output=STRUCTURE,
)
ADJUSTMENTS = Adjustments(frequency_penalty=1.5, logit_bias=PARAMS.logit_bias, bad_words=((1, 2),))
ROW = RowState(
    1,
    2,
    INTS,
    3,
    INTS,
    0.5,
    40,
    0.9,
    0.1,
    2**63 - 1,
    5,
    (2, 3),
    LogprobsWanted(2, (4,), 1, 3, 9),
    0.9,
    1,
    ADJUSTMENTS,
)

TOLD = Logprobs(LONGS, INTS, INTS, INTS, INTS, seal(np.array([-0.5, -np.inf], np.float32)), INTS)
POSITION = PositionLogprobs(
    TokenLogprob(1, -0.5, 1, "a", b"a"),
    (TokenLogprob(1, -0.5, 1, "a"),),
    (TokenLogprob(7, -9.0, 80),),
)
COPIES = Copies(INTS, INTS, INTS, INTS)

SAMPLES: list[Message] = [
    Generate(
        1,
        "r1",
        INTS,
        PARAMS,
        9,
        3,
        (2, 7),
        -1,
        10**18,
        None,
        b"salt",
        grammar=STRUCTURE.key,
        chat=ChatFormat("think", "hermes", "<think>"),
        bad_words=((3,),),
    ),
    Abort(1),
    StopMatched(2),
    DeadlineReached(),
    Pause(),
    Resume(),
    TokensReady(
        LONGS,
        INTS,
        (Admitted(1, 16, 5), Admitted(2, 0, 5, PrefixAccount(PrefixEnd.NEW, 7))),
        (Preempted(1),),
        (
            Ended(1, FinishReason.STOP, 2, is_steered=True),
            Ended(2, FinishReason.ERROR, error="not a number"),
        ),
        TOLD,
    ),
    StepPlan(
        1,
        (ROW,),
        LONGS,
        INTS,
        INTS,
        LONGS,
        INTS,
        INTS,
        INTS,
        BOOLS,
        Drafts(LONGS, INTS, INTS),
        COPIES,
        RowMasks(LONGS, INTS, LONGS),
        ToldTokens(LONGS, INTS, INTS, INTS),
    ),
    StepDone(1, INTS, (RowFailed(0, "not a number"),), INTS, TOLD),
    StepFailed(1, "out of memory"),
    SampleRows(1, LONGS, INTS, LONGS),
    GrammarReady(1),
    ReserveBlocks(2, 1, None, LONGS, INTS, LONGS, LONGS, LONGS, LONGS, INTS),
    BlocksReserved(INTS, INTS, INTS, LONGS, INTS, INTS, 9, None, COPIES),
    AdmitSequence(2, 1, 7, 3, INTS, b"salt", 64, 16, False, True, 4, LONGS, LONGS, INTS, 15),
    SequenceAdmitted(
        Grant.FULL, 16, 2, INTS, LONGS, INTS, INTS, 9, 7, PrefixAccount(PrefixEnd.EVICTED), COPIES
    ),
    PublishBlocks(2, 1, FullBlocks(2, LONGS, INTS, INTS, INTS)),
    ReleaseBlocks(2, 1, LONGS, LONGS),
    BlocksSettled(9, 3),
    UnpublishBlocks(2, 1),
    ForgetUnused(2, 1, 10**18, -1),
    ForgetPrefixes(2, 2),
    ReloadWeights("model.gguf"),
    LoadWeights("model.gguf"),
    WeightsLoaded("model.gguf", "it has 3 layers"),
    ResetPrefixCache(),
    PinPrefix(1, b"root", INTS),
    UnpinPrefix(1),
    Delta(
        "r1",
        0,
        "text",
        (1, 2),
        FinishReason.LENGTH,
        "stop",
        Usage(1, 2, 0),
        parts=(
            ReasoningDelta("a", "<think>a"),
            TextDelta("b", "b"),
            ToolCallDelta("id", "name", "{}", "c"),
        ),
        logprobs=(POSITION,),
        prompt_logprobs=(None, POSITION),
    ),
    Finished(
        1,
        "r1",
        3,
        FinishReason.STOP,
        2,
        Usage(1, 2, 0, PrefixAccount(PrefixEnd.WHOLE)),
        Timings(0.1, None, 0.2, 0.3, 1, 0.01, 0.02),
    ),
]


def test_every_member_of_the_union_has_a_sample() -> None:
    assert {type(sample) for sample in SAMPLES} == set(get_args(Message))


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_wire(message: Message) -> None:
    assert same(decode(encode(message)), message)


def test_decoded_arrays_are_read_only() -> None:
    decoded = decode(encode(StepDone(1, INTS)))

    assert isinstance(decoded, StepDone)
    with pytest.raises(ValueError, match="read-only"):
        decoded.token_ids[0] = 5


def test_messages_with_other_arrays_are_not_the_same() -> None:
    assert not same(StepDone(1, INTS), StepDone(1, frozen_ints([1, 2, 4])))
    assert not same(StepDone(1, INTS), StepDone(1, INTS.astype(np.int64)))


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else_is_raised(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(data)


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_a_damaged_frame_gives_a_message_or_a_decode_error(message: Message) -> None:
    rng = random.Random(0)
    frame = encode(message)
    for _ in range(200):
        damaged = bytearray(frame)
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        cut = bytes(damaged[: rng.randrange(len(damaged) + 1)])
        for attempt in (bytes(damaged), cut):
            try:
                decoded = decode(attempt)
            except DecodeError:
                continue
            assert type(decoded) in get_args(Message)


@pytest.mark.parametrize(
    "parts",
    [
        ["Nobody", []],
        ["Abort", []],
        ["Abort", ["one"]],
        ["Abort", [True]],
        ["Abort", {"serial": 1}],
        ["StepDone", [1, [1, 2], []]],
        ["BlocksSettled", [1, "soon"]],
        ["Abort", [1], 2],
        {"Abort": [1]},
        17,
    ],
)
def test_a_frame_of_another_form_is_refused(parts: object) -> None:
    with pytest.raises(DecodeError):
        decode(msgpack.packb(parts))


def test_sampling_that_has_no_meaning_is_refused_on_the_wire_too() -> None:
    frame = encode(SAMPLES[0]).replace(b"\xcb" + np.float64(0.5).byteswap().tobytes(), b"\xff", 1)

    with pytest.raises(DecodeError, match="top_p"):
        decode(frame)
