"""The slot tables remember exactly what plans and samples told them."""

from typing import Any

import numpy as np

from stepahead.gpu.slots import SlotTables, expand_rows
from stepahead.messages import StepPlan
from stepahead.messages.arrays import frozen_ints, frozen_longs

from .device_driver import make_plan, make_row


def make_tables() -> SlotTables:
    return SlotTables(num_slots=4, max_model_len=16, block_size=4)


def append_blocks(slots: list[int], indices: list[int], blocks: list[int]) -> StepPlan:
    fields: dict[str, Any] = {
        name: getattr(make_plan(1, []), name) for name in StepPlan.__dataclass_fields__
    }
    fields |= {
        "block_slots": frozen_ints(slots),
        "block_indices": frozen_ints(indices),
        "block_ids": frozen_ints(blocks),
    }
    return StepPlan(**fields)


def test_a_row_state_replaces_what_a_slot_held() -> None:
    tables = make_tables()
    tables.apply(make_plan(1, [], [make_row(2, [5, 6, 7], [9, 8], temperature=0.5, min_end=4)]))

    tables.apply(make_plan(2, [], [make_row(2, [1], [3], epoch=7, top_k=2**40, seed=2**40)]))

    assert tables.tokens[2, 0] == 1
    assert tables.block_table[2, 0] == 3
    assert tables.epochs[2] == 7
    assert tables.temperature[2] == 0
    assert tables.min_end[2] == 0
    assert tables.top_k[2] == 2**31 - 1
    assert tables.seed[2] == 2**40


def test_a_temperature_beyond_single_precision_is_its_largest() -> None:
    tables = make_tables()

    tables.apply(make_plan(1, [], [make_row(2, [5], [9], temperature=1e300)]))

    assert tables.temperature[2] == np.finfo(np.float32).max


def test_appended_blocks_take_their_places() -> None:
    tables = make_tables()
    tables.apply(make_plan(1, [], [make_row(0, [1], [4]), make_row(3, [1], [5])]))

    tables.apply(append_blocks([3, 0, 3], [1, 1, 2], [10, 11, 12]))

    assert tables.block_table[3, :3].tolist() == [5, 10, 12]
    assert tables.block_table[0, :2].tolist() == [4, 11]
    assert tables.blocks_of(frozen_longs([3, 3, 0]), frozen_ints([3, 8, 5])).tolist() == [5, 12, 11]


def test_sampled_tokens_follow_the_confirmed_ones() -> None:
    tables = make_tables()
    tables.apply(make_plan(1, [], [make_row(0, [1, 2], [0]), make_row(1, [3], [1])]))

    tables.record(
        tables.places_of(frozen_longs([0, 1]), frozen_ints([2, 1])), frozen_ints([40, 41])
    )

    assert tables.tokens[0, :3].tolist() == [1, 2, 40]
    assert tables.tokens[1, :2].tolist() == [3, 41]


def test_a_failed_row_leaves_a_token_that_can_be_looked_up() -> None:
    tables = make_tables()

    tables.record(tables.places_of(frozen_longs([1]), frozen_ints([0])), frozen_ints([-1]))

    assert tables.tokens[1, 0] == 0


def test_the_last_position_of_the_context_can_still_sample() -> None:
    tables = make_tables()

    tables.record(tables.places_of(frozen_longs([0]), frozen_ints([16])), frozen_ints([9]))

    assert tables.tokens[0, 16] == 9


def test_rows_expand_to_their_positions() -> None:
    rows, positions = expand_rows(frozen_ints([5, 0, 9]), frozen_ints([2, 3, 1]))

    assert rows.tolist() == [0, 0, 1, 1, 1, 2]
    assert positions.tolist() == [5, 6, 0, 1, 2, 9]
    assert positions.dtype == np.int32
