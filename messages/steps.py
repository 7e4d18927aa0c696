"""What the device is asked to run, and what comes back."""

from dataclasses import dataclass

import numpy as np

from .adjustments import Adjustments
from .arrays import Bools, Ints, Longs
from .logprobs import Logprobs, LogprobsWanted


@dataclass(frozen=True, slots=True, eq=False)
class RowState:
    """All a device must know of a slot at the start of an epoch; it replaces what it knew."""

    slot: int
    epoch: int
    token_ids: Ints  # the confirmed tokens, prompt and output
    num_prompt_tokens: int
    block_ids: Ints  # block table from position 0
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    min_end: int  # while the position sampled is below this, `banned_ids` cannot be sampled
    banned_ids: tuple[int, ...]
    logprobs: LogprobsWanted | None = None
    typical_p: float = 1.0
    index: int = 0  # which of the request's answers it is; its noise depends on it
    adjustments: Adjustments | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Drafts:
    """Guessed tokens that rows of a step carry beyond the last one known; parallel columns."""

    rows: Longs  # indices into the plan's rows, rising
    counts: Ints  # how many each of them carries, at least one
    token_ids: Ints  # flat, row after row

    def per_row(self, num_rows: int) -> Ints:
        """How many every row of the plan carries.  # [num_rows]"""
        counts = np.zeros(num_rows, dtype=np.int32)
        counts[self.rows] = self.counts
        return counts


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """Whole blocks that a step moves before it does anything else: first those to host memory,
    then those from it. Parallel columns of each direction."""

    out_blocks: Ints  # device blocks
    out_hosts: Ints  # host blocks, as all here
    in_hosts: Ints
    in_blocks: Ints

    def __len__(self) -> int:
        """Blocks moved."""
        return len(self.out_blocks) + len(self.in_blocks)


@dataclass(frozen=True, slots=True, eq=False)
class RowMasks:
    """What rows of structured requests may sample; each that samples is in one of both columns.

    A mask has bit i % 32 of word i // 32 set where token i is allowed; all have as many words.
    """

    rows: Longs  # indices into the plan's rows
    words: Ints  # their masks, flat
    held: Longs  # rows that are sampled when a SampleRows brings their mask


@dataclass(frozen=True, slots=True, eq=False)
class ToldTokens:
    """Tokens of rows of a step that no step sampled; parallel columns."""

    slots: Longs
    starts: Ints  # the position of the first of them
    counts: Ints  # how many, at least one
    token_ids: Ints  # flat, slot after slot


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """One step: what changed since the last one, then the rows that run: Scheduler → Executor.

    Row columns are parallel and in planning order. A row computes positions
    [start, start + length) of its slot; the token at a position the host does not know yet is the
    one the device sampled there itself. A row that samples writes its token at `start + length`.
    The device makes the `copies`, applies `new_rows`, `block_*` and `told`, and in each layer
    writes every row's KV before any row attends (a row may read blocks that an earlier row of the
    same step writes). A plan may consist of copies alone.

    A row with drafts takes them for the tokens that follow its start, and its length includes
    them. It samples behind its last known token and behind every draft that is what it sampled.
    """

    step: int
    new_rows: tuple[RowState, ...]
    block_slots: Longs  # appended blocks, parallel: block_ids[i] becomes entry block_indices[i]
    block_indices: Ints
    block_ids: Ints
    slots: Longs  # 64 bits wide, because they index tables in every step
    epochs: Ints
    starts: Ints
    lengths: Ints
    samples: Bools
    drafts: Drafts | None = None
    copies: Copies | None = None
    masks: RowMasks | None = None
    told: ToldTokens | None = None

    @property
    def num_tokens(self) -> int:
        """Token positions that this step computes."""
        return int(np.add.reduce(self.lengths))


@dataclass(frozen=True, slots=True, eq=False)
class SampleRows:
    """Masks for held rows of a posted step: Scheduler → Executor. Each held row gets exactly one;
    what is held in a step that was answered meanwhile needs none any more."""

    step: int
    rows: Longs  # indices into the plan's rows
    words: Ints  # their masks, flat
    void: Longs  # held rows whose token will not count, whatever it is


@dataclass(frozen=True, slots=True)
class RowFailed:
    """A row whose result cannot be used, for instance because its logits are not numbers."""

    row: int  # index into the plan's rows
    error: str


@dataclass(frozen=True, slots=True, eq=False)
class StepDone:
    """The result of one step: Executor → Scheduler. Steps are answered in order, each once."""

    step: int
    token_ids: Ints  # of the sampling rows, in row order; a single -1 where the row failed
    failed: tuple[RowFailed, ...] = ()
    counts: Ints | None = None  # tokens of each sampling row; None: one each
    logprobs: Logprobs | None = None  # of the rows that asked; owners are rows of the plan


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A step that gave no result at all; the steps after it in flight fail with it."""

    step: int
    error: str
