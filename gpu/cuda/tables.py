"""DeviceTables: what the GPU remembers of every slot between steps, changed only by its kernels."""

import numpy as np
import torch

from ...messages import StepPlan
from ..kernels.row_updates import RowTables
from ..logits_processors import LogitsProcessors
from ..uploads import Upload
from .changes import Changes, TableShape
from .sampling_tables import SamplingTables

TOKENS, BLOCKS, SAMPLING = range(3)  # places of the tables


class DeviceTables:
    """Tokens and block tables by slot, and how each slot is sampled.

    The token at a position below what a row state brought comes from that state; above it, from
    what the device sampled itself. One table has both, so that decoding needs none of its own.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        num_slots: int,
        max_model_len: int,
        block_size: int,
        num_blocks: int,
        vocab_size: int,
        upload: Upload,
        processors: LogitsProcessors | None = None,
    ) -> None:
        self.block_size = block_size
        max_blocks = -(-max_model_len // block_size)
        # One column more than the context: the last position may still sample a token.
        width = max_model_len + 1
        self.tokens = torch.zeros((num_slots, width), dtype=torch.int32, device=device)
        self.block_table = torch.zeros((num_slots, max_blocks), dtype=torch.int32, device=device)
        self.sampling = SamplingTables(self.tokens, vocab_size, upload, processors)
        self.rows = RowTables.of((self.tokens, self.block_table, self.sampling.lines))
        self._shapes = (
            TableShape("the tokens", num_slots, width, end=vocab_size),
            TableShape("the block table", num_slots, max_blocks, end=num_blocks),
            TableShape("the sampling table", *self.sampling.lines.shape),
        )

    @property
    def num_slots(self) -> int:
        return len(self.tokens)

    @property
    def max_model_len(self) -> int:
        return self.tokens.shape[1] - 1

    def changes_of(self, plan: StepPlan) -> Changes:
        """What a plan brings: row states, appended blocks, what it tells, drafts; beside it stand
        the fills of `sampling`. Raises IndexError or ValueError where it does not fit."""
        changes = Changes(self._shapes)
        for row in plan.new_rows:
            changes.write(TOKENS, row.slot, 0, row.token_ids)
            changes.write(BLOCKS, row.slot, 0, row.block_ids)
            changes.write(SAMPLING, row.slot, 0, self.sampling.begin(row))
        if len(plan.block_slots):
            changes.write_each(BLOCKS, plan.block_slots, plan.block_indices, plan.block_ids)
        if (told := plan.told) is not None:
            begin = 0
            for slot, start, count in zip(
                told.slots.tolist(), told.starts.tolist(), told.counts.tolist(), strict=True
            ):
                changes.write(TOKENS, slot, start, told.token_ids[begin : begin + count])
                begin += count
        if (drafts := plan.drafts) is not None:
            begin = 0
            for row, count in zip(drafts.rows.tolist(), drafts.counts.tolist(), strict=True):
                slot, start = int(plan.slots[row]), int(plan.starts[row])
                changes.write(TOKENS, slot, start + 1, drafts.token_ids[begin : begin + count])
                begin += count
        return changes

    def require_rows(self, plan: StepPlan) -> None:
        """Raise IndexError where a row of the plan lies outside the tables."""
        most, least = np.maximum.reduce, np.minimum.reduce  # as methods they take twice as long
        if len(plan.slots) and not (
            most(plan.slots.view(np.uint64)) < self.num_slots  # those below 0 are the largest
            and least(plan.starts) >= 0
            and least(plan.lengths) >= 1
            and most(plan.starts + plan.lengths) <= self.max_model_len
        ):
            raise IndexError(
                f"a row of step {plan.step} lies outside the {self.num_slots} slots of "
                f"{self.max_model_len} positions"
            )
