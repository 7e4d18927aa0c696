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
from ..slots import SlotTables
from ..verify import sampled_positions
from .kv import HalfKV
from .library import Plan, load_library
from .model import bind_model
from .packing import LANES, Floats

_MOST_QUERIES = 12  # query heads that may share a key head
_MOST_DIM = 512
_MOST_PLANES = 7  # tokens of a step up to which the exact products are the faster ones
_NO_SUCH_ROW = -2


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
        count = len(sampled_positions(plan)[0])
        if count > len(self._room):
            self._room = self._new_room(count)
        logits = self._room[:count]
        self._compute(plan, tables, logits=logits.ctypes.data)
        return logits

    def likeliest(self, plan: StepPlan, tables: SlotTables) -> Ints:
        """Compute a plan's rows; of each place that it samples the token of the highest logit, the
        first of equal ones; NOT_NUMBERS or NONE_LEFT where that is no number.  # [num_samples]"""
        token_ids: Ints = np.empty(len(sampled_positions(plan)[0]), dtype=np.int32)
        self._compute(plan, tables, likeliest=token_ids.ctypes.data)
        return token_ids

    def _compute(
        self, plan: StepPlan, tables: SlotTables, *, logits: int = 0, likeliest: int = 0
    ) -> None:
        """Compute a plan's rows; one of `logits` and `likeliest` is where what is told goes."""
        drafts = None if plan.drafts is None else plan.drafts.per_row(len(plan.slots))
        asked = Plan(
            num_rows=len(plan.slots),
            num_slots=len(tables.tokens),
            token_width=tables.tokens.shape[1],
            table_width=tables.block_table.shape[1],
            slots=plan.slots.ctypes.data,
            starts=plan.starts.ctypes.data,
            lengths=plan.lengths.ctypes.data,
            samples=plan.samples.ctypes.data,
            drafts=None if drafts is None else drafts.ctypes.data,
            tokens=tables.tokens.ctypes.data,
            tables=tables.block_table.ctypes.data,
            logits=logits,
            likeliest=likeliest,
        )
        self._run(asked)

    def _run(self, plan: Plan) -> None:
        failed = self._library.stepahead_forward(
            self._team, self._scratch, ctypes.byref(self._model), ctypes.byref(plan)
        )
        if failed == _NO_SUCH_ROW:
            raise IndexError("a row of the step lies outside of the slots and their positions")
        if failed:
            raise MemoryError(f"no memory for a step of {plan.num_rows} rows")

    def logits_behind(self, tokens: Longs) -> Floats:
        """Logits behind tokens of the plan that was computed last.  # [places, vocab]"""
        wanted, logits = tokens.astype(np.int32), self._new_room(len(tokens))
        self._library.stepahead_logits_behind(
            self._team,
            self._scratch,
            ctypes.byref(self._model),
            wanted.ctypes.data,
            len(wanted),
            logits.ctypes.data,
        )
        return logits

    def _new_room(self, rows: int) -> Floats:
        return np.empty((rows, self._vocab_size), dtype=np.float32)

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
