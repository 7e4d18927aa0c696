"""The sampling that a model's makers recommend; the engine never applies it by itself."""

import json
from pathlib import Path

from ..messages import ModelError, RequestRejected, SamplingParams

_OF_SHORT_NAME = {"smollm2-135m": SamplingParams(temperature=0.2, top_p=0.9)}  # its model card
_FIELDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "no_repeat_ngram_size",
)


def recommended_params(model: str | Path, path: Path) -> SamplingParams:
    """From generation_config.json, else by short name, else the literal defaults."""
    generation = path / "generation_config.json"
    if path.is_dir() and generation.is_file():
        return _from_generation_config(generation)
    return _OF_SHORT_NAME.get(str(model), SamplingParams())


def _from_generation_config(file: Path) -> SamplingParams:
    try:
        options = json.loads(file.read_text())
        given = {name: options[name] for name in _FIELDS if options.get(name) is not None}
        if options.get("do_sample") is False:
            given["temperature"] = 0.0
        return SamplingParams(**given)
    except (ValueError, TypeError, AttributeError, RequestRejected) as error:
        raise ModelError(f"{file} is not a usable generation configuration: {error}") from error
