"""StepRunner: runs one plan at a time, start to finish, on the thread that calls it."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from ..messages import Copies, StepDone, StepPlan
from ..messages.arrays import NO_INTS, Floats, Ints, Longs, seal
from .adjuster import Adjuster
from .huge_pages import Range, move_to_huge_pages
from .kv import PagedKV
from .logits_processors import LogitsProcessors
from .logprobs import StepLogprobs
from .masks import apply_masks
from .row_failures import row_failures
from .sampling import SamplingRows, are_greedy, sample
from .slots import SlotTables
from .step_model import ChoosesLikeliest, StepModel
from .verify import accept, sampled_positions

MasksOf: TypeAlias = Callable[[StepPlan], Mapping[int, Ints]]
"""Waits for the masks of a plan's rows, by row."""


class StepRunner:
    """A model with its slot tables and KV memory. Knows no threads and no queue."""

    def __init__(
        self,
        model: StepModel,
        tables: SlotTables,
        kv: PagedKV,
        host: PagedKV | None = None,
        processors: LogitsProcessors | None = None,
        weights: Sequence[Range] = (),
    ) -> None:
        """`weights` are the model's, as addresses, which are better read from huge pages."""
        self._use(model)
        self._tables = tables
        self._adjuster = Adjuster(tables.tokens, processors)
        self.kv = kv
        self._host = host  # where blocks may be moved to
        self._weights = weights

    def replace_model(self, model: StepModel) -> None:
        """Run another model of the same shape from now on."""
        self._model.close()
        self._use(model)

    def _use(self, model: StepModel) -> None:
        self._model = model
        self._chooser = model if isinstance(model, ChoosesLikeliest) else None

    def close(self) -> None:
        """The last step has run."""
        self._model.close()

    def settle(self) -> None:
        """What makes steps quicker and need not be done before the first of them. May run on any
        thread, beside steps."""
        move_to_huge_pages(self._weights)

    def skip(self, plan: StepPlan) -> None:
        """Take over what a plan changes without running it."""
        self._take_over(plan)

    def _take_over(self, plan: StepPlan) -> None:
        self._tables.apply(plan)
        self._adjuster.apply(plan.new_rows)

    def run(self, plan: StepPlan, masks_of: MasksOf | None = None) -> StepDone:
        """Make the plan's copies, apply it, compute its rows, and sample those that sample, as
        soon as `masks_of` has given the masks of the plan's rows."""
        if plan.copies is not None:
            self._copy(plan.copies)
        self._take_over(plan)
        if not len(plan.slots):
            return StepDone(plan.step, NO_INTS)
        asked = StepLogprobs.of(plan, self._tables)
        rows, positions = sampled_positions(plan)
        slots = plan.slots[rows]
        places = self._tables.places_of(slots, positions)  # behind the pass all caches are cold
        raw: Floats | None = None
        if self._chooser is not None and asked is None and self._is_plain(plan, slots, positions):
            sampled = self._chooser.likeliest(plan, self._tables)
        else:
            logits = self._model.logits(plan, self._tables)
            raw = None if asked is None else logits[asked.places]
            sampled = self._sample(plan, logits, rows, positions, masks_of)
        if not len(rows) and asked is None:
            return StepDone(plan.step, NO_INTS)
        self._tables.record(places, sampled)
        token_ids, counts = accept(plan, sampled)
        failed = row_failures(plan, token_ids, counts, self._adjuster.faults)
        told = None
        if asked is not None and raw is not None:
            told = asked.tell(raw, token_ids, counts, self._logits_behind)
            failed += asked.failed
        said = np.maximum(token_ids, -1) if failed else token_ids
        return StepDone(plan.step, seal(said), failed, counts, told)

    def _is_plain(self, plan: StepPlan, slots: Longs, positions: Ints) -> bool:
        """Whether each row takes the token of its highest logit, and nobody changes any."""
        is_changed = plan.masks is not None or self._adjuster.slots
        return not is_changed and are_greedy(self._tables, slots, positions)

    def _sample(
        self,
        plan: StepPlan,
        logits: Floats,
        rows: Longs,
        positions: Ints,
        masks_of: MasksOf | None,
    ) -> Ints:
        """One token of each row of float32 logits, which change."""
        slots = plan.slots[rows]
        self._adjuster.adjust(logits, slots, positions)
        is_narrow = None
        if plan.masks is not None:
            assert masks_of is not None, "a plan has masks, and nobody brings them"
            is_narrow = apply_masks(logits, rows, masks_of(plan))
        return sample(logits, SamplingRows.of(self._tables, slots, positions), is_narrow)

    def _logits_behind(self, tokens: Longs) -> Floats:
        return self._model.logits_behind(tokens)

    def _copy(self, copies: Copies) -> None:
        assert self._host is not None, "a plan moves blocks, and there is no host memory"
        if len(copies.out_blocks):
            self._host.copy_blocks(copies.out_hosts, self.kv, copies.out_blocks)
        if len(copies.in_blocks):
            self.kv.copy_blocks(copies.in_blocks, self._host, copies.in_hosts)
