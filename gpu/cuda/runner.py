"""StepRunner: queues one step after the other, and never waits for what it has queued."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from ...messages import Copies, Ints, StepPlan
from ...messages.arrays import NO_INTS
from ..kernels.adjust import RowMasks
from ..kernels.attention_parts import SharedRuns
from ..kernels.row_updates import FIELDS
from ..kernels.step_inputs import StepTensors
from ..logprobs import AskedRows
from .attention import processors_of, step_kinds
from .changes import Changes
from .decode_steps import DecodeSteps
from .decoder import PagedDecoder, StepRows
from .graphs import Capture, GraphFacts, graph_sizes
from .host_buffers import HostBuffers
from .kv_memory import KVMemory
from .logprobs import StepTelling
from .ops import CopyBlocks, Ops
from .running_step import RunningStep
from .sampler import sample_rows
from .samples import Samples
from .sampling_tables import Fill, Needs
from .sharing import Route, Sharing
from .staging import Staging
from .streams import Streams
from .tables import DeviceTables

MasksOf: TypeAlias = Callable[[StepPlan], Mapping[int, Ints]]
"""Waits for the masks of a plan's rows, by row."""

_FEW_TOKENS = (16, 32, 64)  # of steps that only warm up
_NO_COPIES = Copies(NO_INTS, NO_INTS, NO_INTS, NO_INTS)


@dataclass(frozen=True, slots=True)
class _Sent:
    """What the host sends to a step, on the device: its parts in their order."""

    slots: Tensor  # [rows]
    positions: Tensor  # [rows] of the first token of each
    starts: Tensor  # [rows + 1]
    updates: Tensor  # as `Changes.columns` gives them
    values: Tensor
    places: Tensor  # [samples] the tokens behind which the step samples
    sample_slots: Tensor  # [samples]
    sample_positions: Tensor  # [samples]
    out_blocks: Tensor  # these and the rest as in Copies
    out_hosts: Tensor
    in_hosts: Tensor
    in_blocks: Tensor
    shared: Tensor  # the words of the step's route


class StepRunner:
    """A decoder with its tables and memories, on streams. Knows no threads and no queue."""

    def __init__(
        self,
        decoder: PagedDecoder,
        tables: DeviceTables,
        *,
        ops: Ops,
        streams: Streams,
        staging: Staging,
        kv: KVMemory,
        host: KVMemory | None,
        max_num_tokens: int,
    ) -> None:
        """`staging` is of the same streams, and sends what the tables have sent; `host` is where
        blocks may be moved to, `max_num_tokens` what a step may compute."""
        self.kv = kv
        self.streams = streams
        self.decoder = decoder
        self._tables = tables
        self._ops = ops
        self._staging = staging
        self._results = HostBuffers(streams)
        self._refused: dict[int, str] = {}  # by slot, why its request cannot be had
        device = tables.tokens.device
        self._max_rows = max(tables.num_slots // 2, 1)  # the other slots belong to rows that drain
        largest = graph_sizes(self._max_rows)[-1]
        self._inputs = StepTensors.empty(
            max(max_num_tokens, largest), max(tables.num_slots, largest), device
        )
        self._sharing = Sharing(
            decoder.config,
            num_slots=tables.num_slots,
            max_blocks=tables.block_table.shape[1],
            block_size=kv.block_size,
            item_bytes=kv.keys[0].element_size(),
            max_rows=largest,
            device=device,
        )
        self._decodes = DecodeSteps(
            decoder, tables, self._inputs, self._sharing, ops=ops, max_rows=self._max_rows
        )
        self._num_host_blocks = 0 if host is None else host.num_blocks
        if host is not None:
            copier = partial(ops.block_copier, block_size=kv.block_size, device=device)
            self._copy_out: CopyBlocks = copier(host.memories, kv.memories)
            self._copy_in: CopyBlocks = copier(kv.memories, host.memories)

    def warm_up(self) -> None:
        """Run padding in every way in which steps are run, so that no kernel is compiled while
        requests wait. No step is queued."""
        self.streams.run(self._run_padding)
        self.streams.mark().wait()

    def capture_graphs(self, capture: Capture, budget_s: float) -> GraphFacts:
        """Capture steps of one token a row, for as long as the budget lasts. No step is queued."""
        return self._decodes.capture(self.streams, capture, budget_s)

    def start(self, plan: StepPlan, masks_of: MasksOf) -> RunningStep:
        """Queue a plan: its copies, what it changes, its rows, and sampling as soon as `masks_of`
        has given the masks of its rows. Raises, with nothing queued, where it does not fit."""
        self._require(plan)
        starts = np.zeros(len(plan.slots) + 1, dtype=np.int32)
        np.cumsum(plan.lengths, out=starts[1:])
        samples = Samples.of(plan, starts)
        changes = self._changes_of(plan)
        route = self._decodes.route(plan)
        has_all = route.size > 0 and self._decodes.send(plan, route, self._staging)
        fills = self._tables.sampling.take_fills()
        step = RunningStep(plan, samples, self._refused_rows(plan), self._telling(plan))
        needs = self._plain_needs(step, samples, route) if has_all and not fills else None
        if needs is not None:
            self.streams.run(step.caught(partial(self._decode, step, route, needs)))
            return self._fetched(step)
        sent = self._send(plan, starts, samples, changes, route)
        self.streams.run(step.caught(partial(self._compute, step, sent, route, fills)))
        if not step.num_words:
            step.ends_with(self.streams.mark())
            return step
        needs = self._tables.sampling.needs(samples.slots, samples.positions)
        step.processors = needs.processors
        masks = None if plan.masks is None else self._send_masks(samples, masks_of(plan))
        self.streams.run(step.caught(partial(self._finish, step, sent, needs, masks)))
        return self._fetched(step)

    def _plain_needs(self, step: RunningStep, samples: Samples, route: Route) -> Needs | None:
        """How graphs sample a step that is one token for each of its rows and nothing else: what
        it changes is sent to them. None if it is more, or if there is no such graph."""
        plan = step.plan
        brings = plan.new_rows or plan.told or plan.drafts or plan.copies or plan.masks
        tells = step.num_words > len(samples)
        if brings or step.has_refused or tells or len(samples) < len(plan.slots):
            return None
        needs = self._tables.sampling.cuts(samples.slots, samples.positions)
        return needs if needs is not None and self._decodes.can_sample(route, needs) else None

    def _fetched(self, step: RunningStep) -> RunningStep:
        """Queue the copy of what a step says."""
        result = self._results.take(step.num_words)
        words = result.words[: step.num_words]
        mark = self.streams.fetch(lambda: step.words_or(words), words)
        step.ends_with(mark, words, partial(self._results.give, result))
        return step

    def skip(self, plan: StepPlan) -> None:
        """Take over what a plan changes without running it."""
        updates, values = self._staging.send(self._changes_of(plan).columns())
        fills = self._tables.sampling.take_fills()
        self.streams.run(lambda: self._update(updates, values, fills))

    def close(self) -> None:
        """The last step was waited for."""
        self.streams.close()
        self._decodes.clear()

    def _changes_of(self, plan: StepPlan) -> Changes:
        changes = self._tables.changes_of(plan)
        self._sharing.apply(plan)
        for row in plan.new_rows:
            self._refused.pop(row.slot, None)
            why = self._tables.sampling.unsupported(row)
            if why is not None:
                self._refused[row.slot] = why
        return changes

    def _refused_rows(self, plan: StepPlan) -> dict[int, str]:
        if not self._refused:
            return {}
        slots = enumerate(plan.slots.tolist())
        return {row: self._refused[slot] for row, slot in slots if slot in self._refused}

    def _send(
        self, plan: StepPlan, starts: Ints, samples: Samples, changes: Changes, route: Route
    ) -> _Sent:
        copies = plan.copies or _NO_COPIES
        parts = (
            plan.slots,
            plan.starts,
            starts,
            *changes.columns(),
            samples.tokens,
            samples.slots,
            samples.positions,
            copies.out_blocks,
            copies.out_hosts,
            copies.in_hosts,
            copies.in_blocks,
            NO_INTS if route.size else route.words,
        )
        return _Sent(*self._staging.send(parts))

    def _telling(self, plan: StepPlan) -> StepTelling | None:
        asked = AskedRows.of(plan, self._tables.sampling.logprobs)
        if asked is None:
            return None
        tables = self._tables
        return StepTelling(plan, asked, tables.sampling.vocab_size, self._staging.upload)

    def _send_masks(self, samples: Samples, masks: Mapping[int, Ints]) -> RowMasks | None:
        if not masks:
            return None
        mask_of = np.full(len(samples), -1, dtype=np.int32)
        mask_of[np.searchsorted(samples.rows, np.array(list(masks)))] = np.arange(len(masks))
        return RowMasks(*self._staging.send((np.stack(list(masks.values())), mask_of)))

    def _require(self, plan: StepPlan) -> None:
        """Raise IndexError where a row lies outside the tables, or a block outside its memory."""
        self._tables.require_rows(plan)
        if (copies := plan.copies) is None:
            return
        for blocks, limit in (
            (copies.out_blocks, self.kv.num_blocks),
            (copies.in_blocks, self.kv.num_blocks),
            (copies.out_hosts, self._num_host_blocks),
            (copies.in_hosts, self._num_host_blocks),
        ):
            if len(blocks) and not (blocks.min() >= 0 and blocks.max() < limit):
                raise IndexError(f"a block that is copied lies outside a memory of {limit} blocks")

    # Queued work

    def _run_padding(self) -> None:
        """Nothing that a sequence reads is written."""
        tables, config = self._tables, self.decoder.config
        nothing = torch.zeros((1, FIELDS), dtype=torch.int32, device=tables.tokens.device)
        none, zero = nothing[0, :0], nothing[0, :1]
        self._ops.update_rows(tables.rows, nothing, zero)
        self._ops.step_inputs(none, none, zero, tables.tokens, 0, self._inputs)
        self._ops.record(zero, zero - 1, zero, tables.tokens)
        if self._num_host_blocks:
            self._copy_out(zero - 1, zero)
            self._copy_in(zero - 1, zero)
        kinds = step_kinds(
            self._max_rows,
            self._sharing.most_tiles(self._max_rows),
            config.num_heads,
            config.num_kv_heads,
            most_positions=tables.block_table.shape[1] * self.kv.block_size,
            processors=processors_of(tables.tokens.device),
        )
        for number, kind in enumerate(kinds):
            # Products with weights of few bits depend on how many tokens there are.
            num_tokens = max(kind.num_rows, _FEW_TOKENS[number % len(_FEW_TOKENS)])
            inputs = self._inputs.first(min(num_tokens, len(self._inputs.token_ids)), kind.num_rows)
            rows = StepRows(tables.block_table, kind.longest, has_singles=kind.has_singles)
            if kind.num_tiles:
                rows = replace(rows, shared=self._sharing.nothing(kind.num_rows, kind.num_tiles))
            self.decoder.logits(self.decoder.forward(inputs, rows))

    def _decode(self, step: RunningStep, route: Route, needs: Needs) -> None:
        self._decodes.compute(route)
        step.words = self._decodes.sample(route, step.num_words, needs)

    def _run(self, inputs: StepTensors, plan: StepPlan, shared: Tensor) -> Tensor:
        """What the model says of each token.  # [tokens, hidden]"""
        longest = int(plan.lengths.max())
        rows = StepRows(
            self._tables.block_table,
            longest,
            has_singles=longest > 1 and bool((plan.lengths == 1).any()),
            shared=SharedRuns.of(shared, len(plan.slots)) if len(shared) else None,
        )
        return self.decoder.forward(inputs, rows)

    def _compute(
        self, step: RunningStep, sent: _Sent, route: Route, fills: tuple[Fill, ...]
    ) -> None:
        tables, plan = self._tables, step.plan
        if plan.copies is not None:
            self._copy_out(sent.out_hosts, sent.out_blocks)
            self._copy_in(sent.in_blocks, sent.in_hosts)
        self._update(sent.updates, sent.values, fills)
        num_rows, num_tokens = len(plan.slots), plan.num_tokens
        if not num_rows:
            return
        if route.size:
            hidden = self._decodes.compute(route)
        else:
            inputs = self._inputs.first(num_tokens, num_rows)
            self._ops.step_inputs(
                sent.slots, sent.positions, sent.starts, tables.tokens, num_tokens, inputs
            )
            hidden = self._run(inputs, plan, sent.shared)
        if step.telling is not None:
            step.told += step.telling.of_prompts(hidden, self.decoder.logits, tables.tokens)
        if len(sent.places):
            step.logits = self.decoder.logits(hidden.index_select(0, sent.places))

    def _update(self, updates: Tensor, values: Tensor, fills: tuple[Fill, ...]) -> None:
        for fill in fills:
            fill()
        self._ops.update_rows(self._tables.rows, updates, values)

    def _finish(self, step: RunningStep, sent: _Sent, needs: Needs, masks: RowMasks | None) -> None:
        """Sample what is sampled, and put what is told behind it."""
        parts = step.told
        if step.logits is not None:
            logits, step.logits = step.logits, None
            raw = None if step.telling is None else step.telling.raw(logits)
            sampled = self._sample(logits, sent, needs, masks)
            parts = [sampled, *parts]
            if step.telling is not None and raw is not None:
                parts.append(step.telling.of_samples(raw, sampled))
        step.words = parts[0] if len(parts) == 1 else torch.cat(parts)

    def _sample(self, logits: Tensor, sent: _Sent, needs: Needs, masks: RowMasks | None) -> Tensor:
        slots, positions, tables = sent.sample_slots, sent.sample_positions, self._tables
        sampled = sample_rows(
            logits, slots, positions, tables.sampling, needs, masks, ops=self._ops
        )
        self._ops.record(sampled, slots, positions, tables.tokens)
        return sampled
