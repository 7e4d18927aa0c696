"""NativeDecoder: a Llama-like model on quantised weights, computed by the library.

It reads the same configuration, slot tables and plans as the torch path, and keeps keys and values
in the same blocks, in float16 and in a layout of its own within a block.
"""

import ctypes
import os

import numpy as np

from ...messages import Ints, Longs, StepPlan
from ..loading.account import WeightSource
from ..models.config import ModelConfig
from ..pace import pace_of
from ..slots import SlotTables, expand_rows
from ..verify import sampled_tokens
from .kv import HalfKV
from .library import Step, load_library
from .model import bind_model
from .packing import LANES, Floats

_MOST_QUERIES = 12  # query heads that may share a key head
_MOST_DIM = 512
_BEST = np.dtype([("logit", np.float32), ("token", np.int32)])
_MOST_PLANES = 7  # tokens of a step up to which the exact products are the faster ones


def why_not(config: ModelConfig, block_size: int) -> str | None:
    """What of a model the library cannot do; None where it can run it."""
    if config.hidden_size % 32 or config.intermediate_size % 32:
        return "its sizes are no multiples of 32"
    if config.head_dim % 32 or config.head_dim > _MOST_DIM:
        return f"its heads have {config.head_dim} dimensions"
    if config.num_heads // config.num_kv_heads > _MOST_QUERIES:
        return f"more than {_MOST_QUERIES} query heads share a key head"
    if block_size % LANES:
        return f"block_size {block_size} is no multiple of {LANES}"
    return None


class NativeDecoder:
    """Plans to logits. Owns the packed weights and the threads that multiply."""

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightSource,
        kv: HalfKV,
        max_model_len: int,
        threads: int,
        *,
        bits: int = 8,
        deterministic: bool = False,
    ) -> None:
        """Weights of more than `bits` are quantised to 8 or 4 of them; what is packed in fewer
        stays as it is. `deterministic`: a token's logits are the same bits in every batch and every
        chunk. Raises ModelError where tensors are missing, misshapen or left over."""
        self._library = load_library()
        self._vocab_size = config.vocab_size
        self._threads = threads
        self.pace = pace_of(config, self._library.stepahead_rate() * 1e9 * threads)
        self._model, self._kept = bind_model(
            config,
            weights,
            kv,
            max_model_len,
            bits=bits,
            most_planes=0 if deterministic else _MOST_PLANES,
            threads=threads,
        )
        self._room = self._new_room(0)  # fresh memory is a sixth of a step of 64 rows
        self._scratch = self._library.stepahead_scratch_new()
        self._team = self._library.stepahead_team_new(threads)
        if not self._scratch or not self._team:
            self.close()
            raise MemoryError("no memory for the native decoder's threads")

    def logits(self, plan: StepPlan, tables: SlotTables) -> Floats:
        """Compute a plan's rows; logits of each place that it samples.  # [num_samples, vocab]

        They are the caller's, to change as well, until the next plan.
        """
        wanted = sampled_tokens(plan).astype(np.int32)
        if len(wanted) > len(self._room):
            self._room = self._new_room(len(wanted))
        logits = self._room[: len(wanted)]
        self._compute(plan, tables, wanted, logits=logits.ctypes.data)
        return logits

    def likeliest(self, plan: StepPlan, tables: SlotTables) -> tuple[Ints, Floats]:
        """Compute a plan's rows; of each place that it samples the token of the highest logit, the
        first of equal ones, and that logit: NaN where any is.  # both [num_samples]"""
        wanted = sampled_tokens(plan).astype(np.int32)
        best = np.zeros((self._threads, len(wanted)), dtype=_BEST)
        best["logit"] = -np.inf
        self._compute(plan, tables, wanted, best=best.ctypes.data)
        logits: Floats = best["logit"].max(axis=0, initial=-np.inf)
        tokens = np.where(best["logit"] < logits, self._vocab_size, best["token"])
        return tokens.min(axis=0, initial=self._vocab_size), logits

    def _compute(
        self, plan: StepPlan, tables: SlotTables, wanted: Ints, *, logits: int = 0, best: int = 0
    ) -> None:
        """One of `logits` and `best` is where what is said of the wanted tokens goes."""
        rows, positions = expand_rows(plan.starts, plan.lengths)
        tokens = np.ascontiguousarray(tables.tokens[plan.slots[rows], positions])
        num_blocks = -(-int((plan.starts + plan.lengths).max()) // tables.block_size)
        blocks = np.ascontiguousarray(tables.block_table[plan.slots, :num_blocks])
        row_of_token = rows.astype(np.int32)
        step = Step(
            num_tokens=len(tokens),
            table_width=num_blocks,
            tokens=tokens.ctypes.data,
            positions=positions.ctypes.data,
            rows=row_of_token.ctypes.data,
            tables=blocks.ctypes.data,
            logits=logits,
            best=best,
        )
        self._run(step, wanted)

    def logits_behind(self, tokens: Longs) -> Floats:
        """Logits behind tokens of the plan that was computed last.  # [places, vocab]"""
        logits = self._new_room(len(tokens))
        self._run(Step(logits=logits.ctypes.data), tokens.astype(np.int32))
        return logits

    def _new_room(self, rows: int) -> Floats:
        return np.empty((rows, self._vocab_size), dtype=np.float32)

    def _run(self, step: Step, wanted: Ints) -> None:
        """A step, or, where it has no tokens, more of what is behind those of the last one."""
        step.num_wanted = len(wanted)
        step.wanted = wanted.ctypes.data
        failed = self._library.stepahead_forward(
            self._team, self._scratch, ctypes.byref(self._model), ctypes.byref(step)
        )
        if failed:
            raise MemoryError(f"no memory for a step of {step.num_tokens} tokens")

    def close(self) -> None:
        """Stop the threads and give the memory back. Idempotent."""
        team, scratch = self._team, self._scratch
        self._team = self._scratch = None
        self._library.stepahead_team_free(team)
        self._library.stepahead_scratch_free(scratch)


def default_threads() -> int:
    """As many as there are processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
