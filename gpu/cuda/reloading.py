"""Other weights in the place of those that are there, where captured graphs look for them."""

from dataclasses import fields

from ...messages import ModelError
from ..loading.weights import Weights
from ..models.config import ModelConfig
from .decoder import PagedDecoder
from .weights import load_decoder_weights


def replace_weights(
    decoder: PagedDecoder, config: ModelConfig, weights: Weights, source: str
) -> None:
    """Give a decoder other weights; no step of it may be queued. All of them are read, into the
    processor's memory, before any is copied.

    Raises ModelError, and changes nothing, where they are missing, corrupt or of another shape.
    """
    differing = [
        field.name.replace("_", " ")
        for field in fields(config)
        if getattr(config, field.name) != getattr(decoder.config, field.name)
    ]
    if not differing:
        others = load_decoder_weights(config, weights, bits=decoder.weights.bits)
        if others.shares_head == decoder.weights.shares_head:
            decoder.weights.copy_(others)
            return
        differing = ["tied embeddings"]
    raise ModelError(
        f"{source} differs in {', '.join(differing)} from the model that runs; on a GPU weights "
        "are reloaded only where they were"
    )
