"""Sharing: the groups of a step's rows, from its plan to where the kernels look for them."""

from dataclasses import dataclass

import numpy as np
import torch

from ...messages import StepPlan
from ...messages.arrays import NO_INTS, Ints
from ..kernels.attention_parts import SharedRuns
from ..kernels.cascade import SPLITS, rows_per_tile
from ..models.config import ModelConfig
from .graphs import DecodeGraphs
from .shared_prefix import Savings, SharedPrefix, SharedRows, most_tiles
from .staging import Staging


@dataclass(frozen=True, slots=True)
class Route:
    """How a step is computed: by which graph if by any, and what its rows share."""

    words: Ints  # as `SharedRuns.of` takes them; none where nothing is shared
    graphs: DecodeGraphs | None = None
    size: int = 0  # rows of the graph, padding included


class Sharing:
    """What the rows of every step share, found on the host and read on the device."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        num_slots: int,
        max_blocks: int,
        block_size: int,
        item_bytes: int,
        max_rows: int,
        device: torch.device,
    ) -> None:
        """`item_bytes` are those of a number of the KV, `max_rows` what a graph may compute."""
        self._rows_per_tile = rows_per_tile(config.num_heads, config.num_kv_heads)
        self._words = torch.zeros(self._size(max_rows), dtype=torch.int32, device=device)
        self._prefix = SharedPrefix(
            num_slots=num_slots,
            max_blocks=max_blocks,
            block_size=block_size,
            rows_per_tile=self._rows_per_tile,
            savings=Savings.of(
                heads=config.num_heads,
                kv_heads=config.num_kv_heads,
                dim=config.head_dim,
                item_bytes=item_bytes,
                block_size=block_size,
                splits=SPLITS,
            ),
        )

    def apply(self, plan: StepPlan) -> None:
        """Take over the blocks that a plan brings, whether or not it is run."""
        self._prefix.apply(plan)

    def route(
        self, plan: StepPlan, graphs: DecodeGraphs | None, shared_graphs: DecodeGraphs | None
    ) -> Route:
        """How to compute a plan, which has been applied. Graphs of rows that share come first, then
        those of rows that do not: what a launch costs the host is more than sharing saves."""
        found, num_rows = self._prefix.find(plan), len(plan.slots)
        if 0 < num_rows == plan.num_tokens:  # a row has a token at least
            if found is not None and shared_graphs is not None:
                size = shared_graphs.size_for(num_rows)
                if size is not None:
                    return Route(self._words_of(found, size), shared_graphs, size)
            size = None if graphs is None else graphs.size_for(num_rows)
            if size is not None:
                return Route(NO_INTS, graphs, size)
        return Route(NO_INTS if found is None else found.words(num_rows, len(found.tiles)))

    def most_tiles(self, num_rows: int) -> int:
        """Tiles that so many rows are cut into at most."""
        return most_tiles(num_rows, self._rows_per_tile)

    def nothing(self, num_rows: int, num_tiles: int) -> SharedRuns:
        """What rows of padding share."""
        return SharedRuns.of(self._words.new_zeros(2 * num_rows + 4 * num_tiles), num_rows)

    def captured(self, num_rows: int) -> SharedRuns:
        """What a graph of so many rows reads; `send` puts the next step's there."""
        return SharedRuns.of(self._words[: self._size(num_rows)], num_rows)

    def send(self, words: Ints, staging: Staging) -> None:
        """Queue the words of a route with a graph to where the graph reads them."""
        staging.send_to(self._words[: len(words)], lambda values: np.copyto(values, words))

    def _words_of(self, found: SharedRows, num_rows: int) -> Ints:
        return found.words(num_rows, self.most_tiles(num_rows))

    def _size(self, num_rows: int) -> int:
        return 2 * num_rows + 4 * self.most_tiles(num_rows)
