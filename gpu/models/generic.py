"""GenericDecoder: any decoder of transformers whose attention can be replaced by the paged one.

transformers calls a registered attention function by name; ours finds the step it belongs to in a
context variable, since models pass no argument of their own through. Models that do not call it in
every layer (recurrent ones, encoders, old modeling files) are refused when they are opened.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...messages import ModelError
from ..attention import Attention, Scores
from ..inputs import StepInputs
from ..kv import LayerShape
from .config import Fields

ATTENTION_NAME = "stepahead_paged"
_KNOWN_LAYERS = ("full_attention", "sliding_attention")


_current: ContextVar[Attention] = ContextVar("stepahead_attention")


class GenericDecoder:
    """A transformers model on flat batches; the oracle of the fast path.

    Layers and head are run apart, so that a long prompt never has all its logits at once. What a
    model does to its logits is in the outermost `forward`, so the head is run by calling that on a
    stand-in for the layers, which says what they said before.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._layers_name: str = model.base_model_prefix
        self._layers = getattr(model, self._layers_name)
        self._said = _Said(self._layers)

    def forward(self, inputs: StepInputs, attention: Attention) -> Tensor:
        """What the last layer says of each token.  # [tokens, hidden]"""
        return self.run_layers(inputs.token_ids, inputs.positions, attention)

    def run_layers(self, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """The same for a flat batch that attends through anything."""
        with _attending(attention):
            output = self._layers(
                input_ids=token_ids[None], position_ids=positions[None], use_cache=False
            )
        self._said.output = output
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of some of those.  # [some, hidden] → [some, vocab]"""
        self._said.output.last_hidden_state = hidden[None]
        setattr(self._model, self._layers_name, self._said)
        try:
            logits: Tensor = self._model(input_ids=None, use_cache=False).logits[0]
        finally:
            setattr(self._model, self._layers_name, self._layers)
        return logits


class _Said(torch.nn.Module):
    """Stands where a model's layers stand, and says what they said."""

    def __init__(self, layers: torch.nn.Module) -> None:
        super().__init__()
        self.output: Any = None
        self.config = layers.config

    def forward(self, *_: Any, **__: Any) -> Any:
        return self.output


def load_generic(folder: Path, fields: Fields, dtype: torch.dtype) -> Any:
    """A folder's model with every parameter accounted for. Raises ModelError."""
    from transformers import AutoConfig, AutoModelForCausalLM

    register_attention()
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        refuse_unsupported(config, str(folder))
        with _quiet():
            model, report = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                attn_implementation=ATTENTION_NAME,
                local_files_only=True,
                ignore_mismatched_sizes=True,  # they are in the report, and refused below
                output_loading_info=True,
            )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        kind = fields.get("model_type")
        raise ModelError(f"{folder}: model type {kind!r} cannot be loaded: {error}") from error
    for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report.get(fault):
            names = ", ".join(sorted(str(name) for name in report[fault])[:5])
            raise ModelError(f"{folder} has {fault.split('_')[0]} tensors: {names}")
    return model.eval()


def refuse_unsupported(config: Any, source: str) -> None:
    """Raise ModelError for models that flat batches over paged attention cannot run."""
    text = config.get_text_config()
    if config.is_encoder_decoder:
        raise ModelError(f"{source} is an encoder-decoder; only decoders can be run")
    strange = set(getattr(text, "layer_types", None) or ()) - set(_KNOWN_LAYERS)
    if strange:
        raise ModelError(f"{source} has layers of kind {sorted(strange)}, which cannot be run")


def register_attention() -> None:
    """Make the paged attention known to transformers; doing it again changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, _paged_attention)


def kv_shapes(model: Any, source: str) -> tuple[LayerShape, ...]:
    """What each layer keeps, found by running two tokens. Raises ModelError where one keeps none.

    The two tokens are what shows whether a model calls the attention function at all.
    """
    probe = _Probe()
    tokens = torch.tensor([0, 1])
    try:
        decoder = GenericDecoder(model)
        decoder.head(decoder.run_layers(tokens, tokens, probe))
    except ModelError:
        raise
    except Exception as error:  # whatever a model file raises on a flat batch
        raise ModelError(f"{source} cannot run on a flat batch: {error}") from error
    num_layers = model.config.get_text_config().num_hidden_layers
    absent = [layer for layer in range(num_layers) if layer not in probe.shapes]
    if absent:
        raise ModelError(
            f"{source}: {type(model).__name__} does not call the replaceable attention in "
            f"{len(absent)} of {num_layers} layers, so it cannot be run"
        )
    return tuple(probe.shapes[layer] for layer in range(num_layers))


class _Probe:
    """Notes shapes and attends plainly."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: Scores
    ) -> Tensor:
        self.shapes[layer] = LayerShape(key.shape[1], key.shape[2], value.shape[2])
        return query.new_zeros((*query.shape[:2], value.shape[2]))


@contextmanager
def _attending(attention: Attention) -> Iterator[None]:
    """What transformers calls finds this step's attention."""
    token = _current.set(attention)
    try:
        yield
    finally:
        _current.reset(token)


def _paged_attention(
    module: Any,
    query: Tensor,  # [1, heads, tokens, dim]
    key: Tensor,  # [1, kv_heads, tokens, dim]
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer."""
    name = type(module).__name__
    if attention_mask is not None or options.get("position_bias") is not None:
        raise ModelError(f"{name} adds a mask or bias of its own to its scores; it cannot be run")
    scores = Scores(
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window or getattr(module, "sliding_window", None),
        softcap=softcap,
        sinks=s_aux,
    )
    out = _current.get().attend(
        module.layer_idx,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        scores,
    )
    return out.unsqueeze(0), None  # [1, tokens, heads, dim]


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and reports: what is wrong is raised. Restores what was set before."""
    from transformers.utils import logging

    had_bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()
