"""Floor 0: the values that actors exchange. No asyncio, no torch, no input or output."""

from typing import TypeAlias

from .adjustments import Adjustments
from .answers import (
    AnswerPart,
    ChatFormat,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    joined_parts,
)
from .arrays import (
    NO_INTS,
    NO_LONGS,
    Bools,
    Floats,
    Ints,
    Longs,
    frozen_ints,
    frozen_longs,
    same,
    seal,
)
from .blocks import (
    AdmitSequence,
    BlocksReserved,
    BlocksSettled,
    ForgetPrefixes,
    ForgetUnused,
    FullBlocks,
    Grant,
    PinPrefix,
    PrefixAccount,
    PrefixEnd,
    PublishBlocks,
    ReleaseBlocks,
    ReserveBlocks,
    ResetPrefixCache,
    SequenceAdmitted,
    UnpinPrefix,
    UnpublishBlocks,
)
from .errors import (
    ConfigError,
    DecodeError,
    EngineDead,
    EngineOverloaded,
    ModelError,
    RequestError,
    RequestFailed,
    RequestRejected,
    StepaheadError,
)
from .logprobs import Logprobs, LogprobsWanted, PositionLogprobs, TokenLogprob
from .outputs import Delta, Finished, Output, Result, Score, Timings, Usage
from .params import SamplingParams
from .requests import (
    Abort,
    Admitted,
    DeadlineReached,
    Ended,
    FinishReason,
    Generate,
    GrammarReady,
    Pause,
    Preempted,
    Resume,
    StopMatched,
    TokensReady,
)
from .steps import (
    Copies,
    Drafts,
    RowFailed,
    RowMasks,
    RowState,
    SampleRows,
    StepDone,
    StepFailed,
    StepPlan,
    ToldTokens,
)
from .structure import StructuredOutput, StructureKind
from .weights import LoadWeights, ReloadWeights, WeightsLoaded

Message: TypeAlias = (
    Generate
    | Abort
    | GrammarReady
    | StopMatched
    | DeadlineReached
    | Pause
    | Resume
    | TokensReady
    | StepPlan
    | SampleRows
    | StepDone
    | StepFailed
    | ReloadWeights
    | LoadWeights
    | WeightsLoaded
    | ReserveBlocks
    | BlocksReserved
    | AdmitSequence
    | SequenceAdmitted
    | PublishBlocks
    | ReleaseBlocks
    | BlocksSettled
    | UnpublishBlocks
    | ForgetUnused
    | ForgetPrefixes
    | ResetPrefixCache
    | PinPrefix
    | UnpinPrefix
    | Delta
    | Finished
)
"""Everything that one actor may post to another."""

__all__ = [
    "NO_INTS",
    "NO_LONGS",
    "Abort",
    "Adjustments",
    "AdmitSequence",
    "Admitted",
    "AnswerPart",
    "BlocksReserved",
    "BlocksSettled",
    "Bools",
    "ChatFormat",
    "ConfigError",
    "Copies",
    "DeadlineReached",
    "DecodeError",
    "Delta",
    "Drafts",
    "Ended",
    "EngineDead",
    "EngineOverloaded",
    "FinishReason",
    "Finished",
    "Floats",
    "ForgetPrefixes",
    "ForgetUnused",
    "FullBlocks",
    "Generate",
    "GrammarReady",
    "Grant",
    "Ints",
    "LoadWeights",
    "Logprobs",
    "LogprobsWanted",
    "Longs",
    "Message",
    "ModelError",
    "Output",
    "Pause",
    "PinPrefix",
    "PositionLogprobs",
    "Preempted",
    "PrefixAccount",
    "PrefixEnd",
    "PublishBlocks",
    "ReasoningDelta",
    "ReleaseBlocks",
    "ReloadWeights",
    "RequestError",
    "RequestFailed",
    "RequestRejected",
    "ReserveBlocks",
    "ResetPrefixCache",
    "Result",
    "Resume",
    "RowFailed",
    "RowMasks",
    "RowState",
    "SampleRows",
    "SamplingParams",
    "Score",
    "SequenceAdmitted",
    "StepDone",
    "StepFailed",
    "StepPlan",
    "StepaheadError",
    "StopMatched",
    "StructureKind",
    "StructuredOutput",
    "TextDelta",
    "Timings",
    "TokenLogprob",
    "TokensReady",
    "ToldTokens",
    "ToolCallDelta",
    "UnpinPrefix",
    "UnpublishBlocks",
    "Usage",
    "WeightsLoaded",
    "frozen_ints",
    "frozen_longs",
    "joined_parts",
    "same",
    "seal",
]
