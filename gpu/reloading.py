"""Other weights for a runner that lives: of the same shape, or refused."""

from dataclasses import replace
from pathlib import Path

from ..messages import ModelError
from .binding import bind, bits_of
from .device import DeviceFacts
from .huge_pages import move_to_huge_pages, new_memory
from .kv import LayerShape
from .models.opening import OpenModel, open_model
from .options import DeviceOptions
from .runner import StepRunner


def load_other_weights(
    runner: StepRunner, facts: DeviceFacts, options: DeviceOptions, source: Path, dtype: str
) -> DeviceFacts:
    """Give the runner the weights of another file, on the device's own thread; returns the facts
    that hold from then on. Both models are in memory until the new one is whole.

    Raises ModelError, and changes nothing, where they are missing, corrupt or of another shape.
    """
    model = open_model(source, dtype, generic=options.generic)
    require_same_shape(runner.kv.layers, facts, model, source)
    with new_memory() as weights:
        bound = bind(
            model,
            facts.max_model_len,
            runner.kv,
            bits=bits_of(options),
            deterministic=options.deterministic,
        )
    move_to_huge_pages(weights)
    runner.replace_model(bound)
    return replace(facts, model=source.name)


def require_same_shape(
    layers: tuple[LayerShape, ...], facts: DeviceFacts, model: OpenModel, source: Path
) -> None:
    """Raise ModelError unless what tokenizer, requests and the KV memory, which has these layers,
    were made for stays true."""
    for name, given, needed in (
        ("ids in its vocabulary", model.vocab_size, facts.vocab_size),
        ("layers", len(model.layers), len(layers)),
        ("KV numbers per position", _numbers(model.layers), _numbers(layers)),
    ):
        if given != needed:
            raise ModelError(
                f"{source} has {given:,} {name}, and the model that runs has {needed:,}; "
                "weights can be reloaded only from a model of the same shape"
            )
    if model.layers != layers or model.eos_token_ids != facts.eos_token_ids:
        raise ModelError(
            f"the layers or the end-of-sequence ids of {source} differ from those of the model "
            "that runs; weights can be reloaded only from a model of the same shape"
        )
    if model.context_length < facts.max_model_len:
        raise ModelError(
            f"{source} has a context of {model.context_length:,} tokens, and requests may have "
            f"{facts.max_model_len:,}"
        )


def _numbers(layers: tuple[LayerShape, ...]) -> int:
    return sum(layer.size for layer in layers)
