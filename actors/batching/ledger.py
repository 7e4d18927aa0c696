"""The ledger: every sequence's positions and epoch, in arrays by slot.

           0 ......... written ......... scheduled ......... confirmed + placeholders
    KV     on the device    posted steps write it    not planned yet
    tokens ............................. confirmed | sampled by posted steps, not known here yet

Only `confirmed`, `scheduled` and `written` are kept; the rest is derived (rule 4): the tokens that
steps in flight will sample number max(0, scheduled - confirmed + 1).
"""

import heapq
from collections.abc import Iterable

import numpy as np

from ...messages import Ints, Longs, StepPlan, frozen_ints, seal
from .sequence import Sequence

MAX_STOP_COLUMNS = 4
ONE = np.array(1, dtype=np.int32)  # numpy adds an array to an array at half the cost


class Ledger:
    """Positions by slot. `num_slots` exceeds the running limit: slots free up behind a fence."""

    def __init__(self, num_slots: int, max_model_len: int, block_size: int) -> None:
        def column() -> Ints:
            return np.zeros(num_slots, dtype=np.int32)

        def count() -> Longs:
            """What rises as long as the engine lives: 2**31 steps are some weeks."""
            return np.zeros(num_slots, dtype=np.int64)

        self.num_slots = num_slots
        self.block_size = block_size
        self._width = -(-max_model_len // block_size) * block_size
        self.tokens = np.zeros((num_slots, self._width), dtype=np.int32)
        self._flat_tokens = self.tokens.reshape(-1)
        self.blocks = self.tokens.reshape(num_slots, -1, block_size)  # the same, by block
        self.serial = count()
        # What planning asks of every row, in one array so that it is gathered at once:
        # scheduled: KV written, or to be written by posted steps
        # confirmed: tokens the host knows
        # covered:   positions that the blocks reach
        # end:       tokens at which the sequence ends by length
        self._planned = np.zeros((5, num_slots), dtype=np.int32)
        self.scheduled, self.confirmed, self.covered, self.end, self.epoch = self._planned
        self.changes = 0  # epochs begun; while it stands still, what is in flight is current
        self.written = column()  # KV known to be on the device
        self.published = column()  # blocks that are findable
        self.most_drafts = column()  # drafts that a row may carry
        self.min_end = column()  # a stop id sampled below this position does not stop
        self.valid_from = column()  # results of older epochs are dropped
        self.last_step = count()  # the last step that mentions the slot
        self.hit_step = count()  # the step that last started it upon found blocks
        self._stop_ids = np.full((1, num_slots), -1, dtype=np.int32)  # a row per further stop id
        self._more_stop_ids: dict[int, frozenset[int]] = {}  # by slot, where there are very many
        self.structured: set[int] = set()  # slots whose sequence has a grammar
        self.untold: dict[
            int, int
        ] = {}  # by slot, from where on the device knows no confirmed token
        self.sequences: list[Sequence | None] = [None] * num_slots
        self._free = list(range(num_slots))  # a heap: few are ever used
        self._fenced: list[tuple[int, int]] = []  # a heap: (fence, slot)

    def gather(self, slots: Longs) -> Ints:
        """[5, rows] scheduled, confirmed, covered, end and epoch of these slots."""
        return seal(self._planned.take(slots, axis=1))

    @property
    def num_taken(self) -> int:
        """Slots that sequences have."""
        return self.num_slots - len(self._free) - len(self._fenced)

    def free_slot(self, done: int) -> int | None:
        """A slot that no step in flight mentions, without taking it."""
        while self._fenced and self._fenced[0][0] <= done:
            heapq.heappush(self._free, heapq.heappop(self._fenced)[1])
        return self._free[0] if self._free else None

    def assign(self, slot: int, sequence: Sequence) -> None:
        """A sequence without a slot takes the one that `free_slot` gave."""
        free = heapq.heappop(self._free)
        assert free == slot, f"slot {slot} is not the next free one"
        assert sequence.slot is None
        request = sequence.request
        num_prompt, num_confirmed = len(request.prompt), len(sequence.tokens)
        sequence.slot = slot
        self.sequences[slot] = sequence
        self.serial[slot] = request.serial
        self.tokens[slot, :num_confirmed] = sequence.tokens
        self.confirmed[slot] = num_confirmed
        self.min_end[slot] = num_prompt + request.params.min_tokens
        self.end[slot] = num_prompt + request.max_tokens
        self.most_drafts[slot] = sequence.most_drafts
        if sequence.grammar is not None:
            self.structured.add(slot)
        self._set_stop_ids(slot, request.stop_token_ids)
        self._start_over(slot)
        self.void(slot)

    def confirmed_tokens(self, sequence: Sequence) -> Ints:
        """The tokens of a sequence, as an owned copy."""
        if sequence.slot is None:
            return sequence.tokens
        return frozen_ints(self.tokens[sequence.slot, : self.confirmed[sequence.slot]])

    def last_token(self, sequence: Sequence) -> int:
        """The last confirmed token of a sequence."""
        slot = sequence.slot
        tokens = sequence.tokens if slot is None else self.tokens[slot, : self.confirmed[slot]]
        return int(tokens[-1])

    def detach(self, sequence: Sequence) -> None:
        """A waiting sequence that no step mentions gives up its slot."""
        assert sequence.slot is not None
        sequence.tokens = self.confirmed_tokens(sequence)
        self.vacate(sequence.slot)
        sequence.slot = None

    def jump(self, slot: int, token_ids: Ints) -> None:
        """Tokens are confirmed that no step sampled: what rows in flight sample in their place
        does not count, and the device knows it already."""
        start = int(self.confirmed[slot])
        end = start + len(token_ids)
        self.tokens[slot, start:end] = token_ids
        self.confirmed[slot] = end
        self.changes += 1
        first = max(start, int(self.scheduled[slot]) + 1)
        if first < end:
            self.untold.setdefault(slot, first)

    def place(self, slot: int, cached_tokens: int, num_blocks: int) -> None:
        """The slot's sequence goes on from `cached_tokens`, with `num_blocks` blocks.

        What it held before is written, since nothing in flight mentions it any more; and its row
        state tells the device every token.
        """
        self.untold.pop(slot, None)
        self.written[slot] = self.scheduled[slot]
        self.scheduled[slot] = cached_tokens
        self.covered[slot] = num_blocks * self.block_size

    def preempt(self, slot: int, kept_blocks: int) -> None:
        """Back to where the first blocks end, or to what is confirmed; results in flight still
        count, for their tokens are right."""
        reach = min(int(self.confirmed[slot]), int(self.scheduled[slot]))
        position = min(reach, kept_blocks * self.block_size)
        self._begin_epoch(slot)
        self.scheduled[slot] = position
        self.written[slot] = min(int(self.written[slot]), position)
        self.covered[slot] = kept_blocks * self.block_size
        self.published[slot] = min(int(self.published[slot]), position // self.block_size)

    def void(self, slot: int) -> None:
        """Results in flight do not count any more."""
        self._begin_epoch(slot)
        self.valid_from[slot] = self.epoch[slot]

    def _begin_epoch(self, slot: int) -> None:
        self.changes += 1
        self.epoch[slot] += 1

    def vacate(self, slot: int) -> None:
        """The sequence has ended; the slot is free once its last step is done."""
        self.void(slot)
        self._start_over(slot)
        self.sequences[slot] = None
        self._more_stop_ids.pop(slot, None)
        self.structured.discard(slot)
        self.untold.pop(slot, None)
        heapq.heappush(self._fenced, (int(self.last_step[slot]), slot))

    def _start_over(self, slot: int) -> None:
        for column in (self.scheduled, self.written, self.covered, self.published):
            column[slot] = 0

    def _set_stop_ids(self, slot: int, stop_ids: tuple[int, ...]) -> None:
        """The first few in columns, so that all rows are compared at once."""
        few, more = stop_ids[:MAX_STOP_COLUMNS], stop_ids[MAX_STOP_COLUMNS:]
        missing = len(few) - len(self._stop_ids)
        if missing > 0:
            rows = np.full((missing, self.num_slots), -1, dtype=np.int32)
            self._stop_ids = np.concatenate([self._stop_ids, rows])
        self._stop_ids[:, slot] = -1
        self._stop_ids[: len(few), slot] = few
        if more:
            self._more_stop_ids[slot] = frozenset(more)

    def reach(self, slots: Longs) -> Ints:
        """How far tokens are confirmed and their KV is written, or will be by posted steps."""
        reach: Ints = np.minimum(self.confirmed[slots], self.scheduled[slots])
        return reach

    def confirm(
        self, plan: StepPlan, token_ids: Ints, *, is_current: bool
    ) -> tuple[Longs, Ints, Ints]:
        """Apply a step's sampled tokens (rule 5); returns the (slots, tokens, lengths) that count.

        A token counts iff its sequence has not been voided since and it is the next one; where
        no epoch began since the plan was made (`is_current`), or none of its rows', all do. The
        length is that of the sequence with the token.
        """
        slots, ends = plan.slots, plan.starts + plan.lengths
        is_current = is_current or not (  # a jump passes a row in flight within its epoch
            self.structured or np.count_nonzero(plan.epochs != self.epoch[slots])
        )
        if is_current:
            self.written[slots] = ends
            if len(token_ids) < len(slots):
                slots, ends = slots[plan.samples], ends[plan.samples]
        else:
            slots, ends, token_ids = self._that_count(plan, ends, token_ids)
        self._flat_tokens[slots * self._width + ends] = token_ids
        lengths = ends + ONE
        self.confirmed[slots] = lengths
        return slots, token_ids, lengths

    def _that_count(self, plan: StepPlan, ends: Ints, token_ids: Ints) -> tuple[Longs, Ints, Ints]:
        slots, epochs, samples = plan.slots, plan.epochs, plan.samples
        current = epochs == self.epoch[slots]
        self.written[slots[current]] = ends[current]
        slots, epochs, ends = slots[samples], epochs[samples], ends[samples]
        counts = (epochs >= self.valid_from[slots]) & (ends == self.confirmed[slots])
        return slots[counts], ends[counts], token_ids[counts]

    def ends(self, slots: Longs, token_ids: Ints, lengths: Ints) -> list[tuple[int, bool]]:
        """The rows whose sequence the token just confirmed ends, and whether by its id."""
        stops = self._stop_ids[0][slots] == token_ids
        for stop_ids in self._stop_ids[1:]:
            stops |= stop_ids[slots] == token_ids
        for slot, more in self._more_stop_ids.items():
            for row in (slots == slot).nonzero()[0].tolist():
                stops[row] |= int(token_ids[row]) in more
        is_full = lengths >= self.end[slots]
        rows = (stops | is_full).nonzero()[0]
        if not len(rows):
            return []
        by_id = stops[rows] & (lengths[rows] > self.min_end[slots[rows]])
        ended = by_id | is_full[rows]
        return list(zip(rows[ended].tolist(), by_id[ended].tolist(), strict=True))

    # Invariants

    def check(self, done: int, in_flight: Iterable[StepPlan], running: Longs) -> None:
        """Assert rules 4, 6, 7 and 16 for every slot, of which some run."""
        runs = np.zeros(self.num_slots, dtype=np.bool_)
        runs[running] = True
        sampling = np.zeros(self.num_slots, dtype=np.int32)
        mentioned = np.zeros(self.num_slots, dtype=np.int64)
        for plan in in_flight:
            current = plan.epochs == self.epoch[plan.slots]
            is_awaited = plan.starts + plan.lengths >= self.confirmed[plan.slots]  # or was jumped
            samples = (plan.samples & is_awaited).astype(np.int32)
            if plan.drafts is not None:
                samples += plan.drafts.per_row(len(samples))
            np.add.at(sampling, plan.slots[current], samples[current])
            mentioned[plan.slots] = plan.step
            assert current[runs[plan.slots]].all(), "runs beside a former epoch"
        derived = np.maximum(self.scheduled - self.confirmed + 1, 0)
        assert (derived[runs] == sampling[runs]).all(), "placeholders differ from rows in flight"
        assert (self.written <= self.scheduled).all(), "more is written than scheduled"
        assert (self.scheduled <= self.covered).all(), "KV beyond the blocks"
        assert (self.scheduled <= self.confirmed)[~runs].all(), "held KV of unknown tokens"
        assert (self.covered[runs] > 0).all(), "a sequence runs without blocks"
        assert (self.confirmed + derived <= self.end)[runs].all(), "a token past the end"
        assert (mentioned <= self.last_step).all(), "a fence is behind a step in flight"
        for fence, slot in (*self._fenced, *((done, slot) for slot in self._free)):
            assert self.sequences[slot] is None
            assert fence > done or not mentioned[slot], f"slot {slot} is free while in flight"
