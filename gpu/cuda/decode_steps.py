"""DecodeSteps: steps of one token a row, which graphs compute, from what the host sends to tokens.

What the host sends has a place of its own on the device, so a graph begins by reading it: all that
is left to the host is one copy, and to say which graph. A second graph samples, by temperature or
among the likeliest; where anybody wants more, rows are sampled from what the first one left.
"""

from functools import partial

import numpy as np
from torch import Tensor

from ...messages import Ints, StepPlan
from ..kernels.decode_inputs import FIELDS
from ..kernels.step_inputs import StepTensors
from .decoder import PagedDecoder, StepRows
from .graphs import Capture, DecodeGraphs, GraphFacts, coarse_sizes, graph_sizes
from .ops import Ops
from .sampler import sample_rows
from .sampling_tables import CUTS, NO_NEEDS, Needs
from .sharing import Route, Sharing
from .staging import Staging
from .streams import Streams
from .tables import DeviceTables

MOST_CUT_ROWS = 64  # that graphs sample among the likeliest: beyond, memory counts for more


class DecodeSteps:
    """The graphs of a device and the memory that they read and write."""

    def __init__(
        self,
        decoder: PagedDecoder,
        tables: DeviceTables,
        inputs: StepTensors,
        sharing: Sharing,
        *,
        ops: Ops,
        max_rows: int,
    ) -> None:
        """`inputs` may be those of other steps, too; they have room for the largest graph."""
        self._decoder = decoder
        self._tables = tables
        self._inputs = inputs
        self._sharing = sharing
        self._ops = ops
        self._sizes = graph_sizes(max_rows)
        largest = self._sizes[-1]
        self._sent = inputs.slots.new_full((FIELDS * largest,), -1)
        self._decoded = decoder.weights.embedding.new_empty((largest, decoder.config.hidden_size))
        self._sampled = inputs.slots.new_empty(largest)
        self._row_of: Ints = np.zeros(tables.num_slots, dtype=np.int32)
        self._plain: DecodeGraphs | None = None
        self._shared: DecodeGraphs | None = None  # of rows that share leading blocks
        self._samples: DecodeGraphs | None = None
        self._cuts: DecodeGraphs | None = None  # that sample with top-k, top-p and min-p

    def capture(self, streams: Streams, capture: Capture, budget_s: float) -> GraphFacts:
        """Capture for as long as the budget lasts: what computes rows that share nothing, what
        samples them, what does so among the likeliest, then a few for rows that share leading
        blocks. No step is queued."""
        of = partial(DecodeGraphs, capture=capture)
        plain = of(self._decode, sizes=self._sizes)
        samples = of(partial(self._sample, needs=NO_NEEDS), sizes=self._sizes)
        few = [size for size in self._sizes if size <= MOST_CUT_ROWS]
        cuts = of(partial(self._sample, needs=CUTS), sizes=few)
        shared = of(
            partial(self._decode, is_shared=True),
            sizes=[size for size in coarse_sizes(self._sizes) if size > 1],
        )

        def work() -> None:
            left = budget_s
            for graphs in (plain, samples, cuts, shared):  # of padding: no memory is written
                facts = graphs.capture_all(budget_s=left)
                left -= facts.seconds
                if facts.fault is not None:
                    return

        streams.run(work)
        streams.mark().wait()
        self._plain, self._samples, self._cuts, self._shared = plain, samples, cuts, shared
        return plain.facts.beside(samples.facts).beside(cuts.facts).beside(shared.facts)

    def clear(self) -> None:
        """Let go of all graphs: they captured methods of this."""
        for graphs in (self._plain, self._samples, self._cuts, self._shared):
            if graphs is not None:
                graphs.clear()
        self._plain = self._samples = self._cuts = self._shared = None

    def route(self, plan: StepPlan) -> Route:
        """How to compute a plan that `Sharing` was told of: by which graph, if by any."""
        return self._sharing.route(plan, self._plain, self._shared)

    def send(self, plan: StepPlan, route: Route, staging: Staging) -> bool:
        """Queue what a graph reads of a plan, in front of it; returns whether the blocks that the
        plan appends are among it."""
        num_rows, size = len(plan.slots), route.size
        places = np.full((2, num_rows), -1, dtype=np.int32)  # and blocks
        takes_blocks = self._place_blocks(plan, places)

        def write(values: Ints) -> None:
            lines = values.reshape(FIELDS, size)
            lines[:, num_rows:] = -1
            lines[0, :num_rows] = plan.slots
            lines[1, :num_rows] = plan.starts
            lines[2:, :num_rows] = places

        staging.send_to(self._sent[: FIELDS * size], write)
        if len(route.words):
            self._sharing.send(route.words, staging)
        return takes_blocks

    def _place_blocks(self, plan: StepPlan, places: Ints) -> bool:
        """Appended blocks by row, if each is a row's and no row has two."""
        slots = plan.block_slots
        if not len(slots):
            return True
        self._row_of[slots] = -1
        self._row_of[plan.slots] = np.arange(len(plan.slots), dtype=np.int32)
        rows = self._row_of[slots]
        if rows.min() < 0 or len(np.unique(rows)) < len(rows):
            return False
        places[:, rows] = plan.block_indices, plan.block_ids
        return True

    # Queued work

    def compute(self, route: Route) -> Tensor:
        """What the model says of each row, and of padding anything.  # [size, hidden]"""
        assert route.graphs is not None
        route.graphs.replay(route.size)
        return self._decoded[: route.size]

    def can_sample(self, route: Route, needs: Needs) -> bool:
        """Whether there is a graph that samples these rows by NO_NEEDS or by CUTS."""
        graphs = self._sampling(needs)
        return graphs is not None and graphs.has(route.size)

    def sample(self, route: Route, num_rows: int, needs: Needs) -> Tensor:
        """Tokens of all rows behind `compute`, noted where the next step finds them.
        # [rows] of int32, the caller's"""
        graphs = self._sampling(needs)
        assert graphs is not None
        graphs.replay(route.size)
        return self._sampled[:num_rows].clone()  # the next step may come before it was fetched

    def _sampling(self, needs: Needs) -> DecodeGraphs | None:
        return self._samples if needs is NO_NEEDS else self._cuts

    # What is captured

    def _decode(self, num_rows: int, is_shared: bool = False) -> None:
        tables, inputs = self._tables, self._inputs.first(num_rows, num_rows)
        sent = self._sent[: FIELDS * num_rows]
        self._ops.decode_inputs(sent, tables.tokens, tables.block_table, inputs)
        shared = self._sharing.captured(num_rows) if is_shared else None
        rows = StepRows(tables.block_table, longest=1, shared=shared)
        self._decoded[:num_rows].copy_(self._decoder.forward(inputs, rows))

    def _sample(self, num_rows: int, needs: Needs) -> None:
        """What rows of one token sample takes the position behind all that they have."""
        tables, inputs = self._tables, self._inputs.first(num_rows, num_rows)
        logits = self._decoder.logits(self._decoded[:num_rows])
        slots, ends = inputs.slots, inputs.lengths
        sampled = sample_rows(logits, slots, ends, tables.sampling, needs, ops=self._ops)
        self._ops.record(sampled, slots, ends, tables.tokens)
        self._sampled[:num_rows].copy_(sampled)
