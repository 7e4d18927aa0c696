"""What a model's work costs at least on a device: the bytes it moves and the operations it does.

Floors for measurements to stand beside. Pure arithmetic on a model's shape: weights are read once a
step, all but the embedding table; keys and values of every position once a row; products cost two
operations a weight. Activations, launches and sampling count for nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device does at best: measured on it, or known of its kind."""

    bandwidth: float  # bytes per second, read and written together
    flops_rate: float  # operations per second in matrix products of 16 bits


H200 = Rates(bandwidth=4.3e12, flops_rate=790e12)
"""Measured on one: a copy of its memory, a large product in bfloat16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    """The numbers of a model that its floors are made of."""

    num_params: int
    body_params: int  # of the layers: what every token is multiplied with
    head_params: int  # what a token is multiplied with that is sampled behind
    kv_bytes: int  # per position
    attention_width: int  # query heads times their width, in all layers together
    item_bytes: int = 2  # of a weight

    @property
    def weight_bytes(self) -> int:
        """Read by every step that samples."""
        return self.item_bytes * (self.body_params + self.head_params)

    @property
    def flops_per_token(self) -> int:
        """Of a token that is sampled behind."""
        return 2 * (self.body_params + self.head_params)


@dataclass(frozen=True, slots=True)
class Length:
    """Tokens of a request: those it brings and those it gets."""

    prompt: int
    output: int


def cost_of(config: ModelConfig, *, item_bytes: int = 2) -> ModelCost:
    """Of a shape with weights, keys and values of `item_bytes` each."""
    queries = config.num_heads * config.head_dim
    kept = config.num_kv_heads * config.head_dim
    attention = config.hidden_size * (queries + 2 * kept) + queries * config.hidden_size
    mlp = 3 * config.hidden_size * config.intermediate_size
    norms = 2 * config.hidden_size + (2 * config.head_dim if config.qk_norm else 0)
    biases = (queries + 2 * kept if config.qkv_bias else 0) + (
        config.hidden_size if config.output_bias else 0
    )
    body = config.num_layers * (attention + mlp + norms + biases) + config.hidden_size
    table = config.vocab_size * config.hidden_size
    return ModelCost(
        num_params=body + table * (1 if config.tied_embeddings else 2),
        body_params=body,
        head_params=table,
        kv_bytes=2 * kept * config.num_layers * item_bytes,
        attention_width=queries * config.num_layers,
        item_bytes=item_bytes,
    )


def decode_step_s(cost: ModelCost, rates: Rates, rows: int, length: int) -> float:
    """One step of `rows` sequences that have `length` positions each."""
    moved = cost.weight_bytes + cost.kv_bytes * rows * (length + 1)
    return max(moved / rates.bandwidth, cost.flops_per_token * rows / rates.flops_rate)


def shared_step_s(
    cost: ModelCost, rates: Rates, rows: int, *, shared: int, groups: int, own: int
) -> float:
    """The same where rows have `shared` positions in common, in `groups` of them, and `own` each:
    what is shared is read once a group."""
    moved = cost.weight_bytes + cost.kv_bytes * (groups * shared + rows * (own + 1))
    return max(moved / rates.bandwidth, cost.flops_per_token * rows / rates.flops_rate)


def prefill_s(cost: ModelCost, rates: Rates, tokens: int, *, cached: int = 0) -> float:
    """The layers' products and attention for `tokens` of one prompt behind `cached` others."""
    products = 2 * cost.body_params * tokens
    seen = tokens * cached + tokens * (tokens + 1) / 2
    attention = 4 * cost.attention_width * seen
    return (products + attention) / rates.flops_rate


def batch_s(cost: ModelCost, rates: Rates, lengths: Sequence[Length]) -> float:
    """All requests at once: every prompt computed, then steps of all that are not done yet."""
    prompts = np.array([length.prompt for length in lengths], dtype=np.int64)
    outputs = np.array([length.output for length in lengths], dtype=np.int64)
    num_prompt = int(prompts.sum())
    seconds = 2 * cost.body_params * num_prompt / rates.flops_rate
    seconds += cost.kv_bytes * num_prompt / rates.bandwidth
    order = np.argsort(outputs)  # the shortest answers leave first
    prompts, outputs = prompts[order], outputs[order]
    steps = np.arange(int(outputs[-1]), dtype=np.int64)
    gone = np.searchsorted(outputs, steps, side="right")
    rows = len(outputs) - gone
    ahead = np.concatenate([[0], np.cumsum(prompts)])
    positions = ahead[-1] - ahead[gone] + rows * steps
    moved = cost.weight_bytes + cost.kv_bytes * (positions + rows)
    done = cost.flops_per_token * rows
    each = np.maximum(moved / rates.bandwidth, done / rates.flops_rate)
    return seconds + float(each.sum())


def steady_tokens_per_s(cost: ModelCost, rates: Rates, length: Length, rows: int) -> float:
    """Output tokens a second with `rows` requests always running, prompts computed beside them.

    Reading and computing add up: the products of prompts and the keys and values of decoding rows
    take turns in a layer.
    """
    mean = length.prompt + length.output // 2
    moving = (cost.weight_bytes + cost.kv_bytes * rows * mean) / rates.bandwidth
    tokens = rows * (1 + length.prompt / length.output)
    computing = cost.flops_per_token * tokens / rates.flops_rate
    return rows / (moving + computing)
