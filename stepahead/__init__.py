"""An event-driven LLM inference engine that lives inside your asyncio program.

The names load what they need when they are first used, so that importing this package imports
neither torch nor transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .actors.config import EngineConfig
    from .actors.engine import Engine
    from .gpu.logits_processors import LogitsProcessor, ProcessedRows
    from .messages import (
        ConfigError,
        Delta,
        EngineDead,
        EngineOverloaded,
        FinishReason,
        ModelError,
        Output,
        PositionLogprobs,
        ReasoningDelta,
        RequestFailed,
        RequestRejected,
        Result,
        SamplingParams,
        Score,
        StepaheadError,
        StructuredOutput,
        TextDelta,
        TokenLogprob,
        ToolCallDelta,
    )

__version__ = "0.1.0"

_HOMES = {
    "Engine": ".actors.engine",
    "EngineConfig": ".actors.config",
    "LogitsProcessor": ".gpu.logits_processors",
    "ProcessedRows": ".gpu.logits_processors",
}

__all__ = [
    "ConfigError",
    "Delta",
    "Engine",
    "EngineConfig",
    "EngineDead",
    "EngineOverloaded",
    "FinishReason",
    "LogitsProcessor",
    "ModelError",
    "Output",
    "PositionLogprobs",
    "ProcessedRows",
    "ReasoningDelta",
    "RequestFailed",
    "RequestRejected",
    "Result",
    "SamplingParams",
    "Score",
    "StepaheadError",
    "StructuredOutput",
    "TextDelta",
    "TokenLogprob",
    "ToolCallDelta",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, ".messages"), __name__), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
