"""Rows of a step that begin with the same blocks are found, and only as far as that pays."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from stepahead.gpu.cuda.prefix_tree import Node, PrefixTree
from stepahead.gpu.cuda.shared_prefix import (
    MOST_GROUPS,
    Savings,
    SharedPrefix,
    SharedRows,
    most_tiles,
)
from stepahead.messages import RowState, StepPlan, frozen_ints, frozen_longs

BLOCK_SIZE = 4
NUM_SLOTS = 24
FREE = Savings(block_bytes=2, row_bytes=0, launch_bytes=0)  # a block saved for a row gains 1


def state(slot: int, epoch: int, blocks: Sequence[int]) -> RowState:
    tokens = frozen_ints(range(len(blocks) * BLOCK_SIZE))
    return RowState(
        slot, epoch, tokens, len(tokens), frozen_ints(blocks), 0.0, 0, 1.0, 0.0, 0, 0, ()
    )


def plan_of(
    rows: Sequence[tuple[int, int, int]],
    new: Sequence[RowState] = (),
    appended: Sequence[tuple[int, int, int]] = (),
) -> StepPlan:
    """Rows as (slot, start, length), appended blocks as (slot, place, block)."""
    slots, starts, lengths = zip(*rows, strict=True) if rows else ((), (), ())
    at = np.array(appended, dtype=np.int64).reshape(-1, 3)
    return StepPlan(
        1,
        tuple(new),
        frozen_longs(at[:, 0].tolist()),
        frozen_ints(at[:, 1].tolist()),
        frozen_ints(at[:, 2].tolist()),
        frozen_longs(slots),
        frozen_ints([0] * len(rows)),
        frozen_ints(starts),
        frozen_ints(lengths),
        np.ones(len(rows), dtype=bool),
    )


def shared_prefix(savings: Savings = FREE, rows_per_tile: int = 4) -> SharedPrefix:
    return SharedPrefix(
        num_slots=NUM_SLOTS,
        max_blocks=16,
        block_size=BLOCK_SIZE,
        rows_per_tile=rows_per_tile,
        savings=savings,
    )


def found(finder: SharedPrefix, plan: StepPlan) -> SharedRows | None:
    finder.apply(plan)
    return finder.find(plan)


def decoding(tables: Sequence[Sequence[int]], epoch: int = 1) -> StepPlan:
    """A row for every table, at the first position behind its blocks."""
    rows = [(slot, len(blocks) * BLOCK_SIZE, 1) for slot, blocks in enumerate(tables)]
    return plan_of(rows, [state(slot, epoch, blocks) for slot, blocks in enumerate(tables)])


def test_rows_that_begin_with_the_same_blocks_are_a_group() -> None:
    shared = found(shared_prefix(), decoding([[7, 8, 1], [9, 2], [7, 8, 3], [7, 8]]))

    assert shared is not None
    assert shared.lengths.tolist() == [8, 0, 8, 8]
    assert shared.order.tolist() == [0, 2, 3]
    ((first, count, slot, positions),) = shared.tiles.tolist()
    assert (first, count, positions) == (0, 3, 8)
    assert slot in {0, 2, 3}


def test_rows_that_share_nothing_are_left_alone() -> None:
    assert found(shared_prefix(), decoding([[1, 2], [3, 2], [4]])) is None
    assert found(shared_prefix(), plan_of([])) is None


def test_a_group_is_cut_into_tiles() -> None:
    shared = found(shared_prefix(rows_per_tile=4), decoding([[5]] * 9))

    assert shared is not None
    assert shared.tiles[:, :2].tolist() == [[0, 4], [4, 4], [8, 1]]
    assert len(shared.tiles) <= most_tiles(9, 4)


def test_a_row_that_shares_little_does_not_cut_the_others_short() -> None:
    shared = found(
        shared_prefix(), decoding([[1, 2, 3, 4, 5, slot] for slot in (6, 7, 8)] + [[1, 9]])
    )

    assert shared is not None
    assert shared.lengths.tolist() == [20, 20, 20, 0]


def test_what_a_group_saves_must_pay_for_its_parts_and_the_launch() -> None:
    tables = [[1, 2, slot] for slot in (3, 4, 5)]  # two others need not read two blocks

    assert found(shared_prefix(Savings(2, row_bytes=1, launch_bytes=0)), decoding(tables))
    assert found(shared_prefix(Savings(2, row_bytes=2, launch_bytes=0)), decoding(tables)) is None
    assert found(shared_prefix(Savings(2, row_bytes=0, launch_bytes=3)), decoding(tables))
    assert found(shared_prefix(Savings(2, row_bytes=0, launch_bytes=4)), decoding(tables)) is None


def test_the_estimate_is_that_of_its_arithmetic() -> None:
    savings = Savings.of(heads=32, kv_heads=8, dim=128, item_bytes=2, block_size=16, splits=8)

    assert savings.block_bytes == 64 << 10
    assert savings.row_bytes == 260 << 10
    assert savings.gain(32, 32) > savings.launch_bytes > savings.gain(8, 32)
    assert savings.gain(8, 128) > savings.launch_bytes


def test_only_full_blocks_before_a_token_are_shared() -> None:
    tables = [[1, 2], [1, 2]]
    rows = [(0, 7, 1), (1, 8, 1)]  # the token of the first stands in its second block
    new = [state(slot, 1, blocks) for slot, blocks in enumerate(tables)]

    shared = found(shared_prefix(), plan_of(rows, new))

    assert shared is not None
    assert shared.lengths.tolist() == [4, 4]


def test_longer_rows_take_no_part() -> None:
    new = [state(slot, 1, [1, 2, 3]) for slot in range(3)]

    shared = found(shared_prefix(), plan_of([(0, 12, 1), (1, 8, 4), (2, 12, 1)], new))

    assert shared is not None
    assert shared.lengths.tolist() == [12, 0, 12]
    assert shared.order.tolist() == [0, 2]


def test_rows_that_run_on_cost_no_new_search() -> None:
    finder = shared_prefix()
    first = found(finder, decoding([[1, 2], [1, 3]]))

    again = found(finder, plan_of([(0, 9, 1), (1, 9, 1)], appended=[(0, 2, 8), (1, 2, 9)]))

    assert again is first


@pytest.mark.parametrize("epoch", [1, 2])  # an engine may begin anew on a device: with old epochs
def test_a_slot_that_is_given_again_shares_what_its_new_blocks_say(epoch: int) -> None:
    finder = shared_prefix()
    found(finder, decoding([[1, 2], [1, 3], [4, 5]]))
    again = [state(1, epoch, [4, 6])]

    shared = found(finder, plan_of([(0, 8, 1), (1, 8, 1), (2, 8, 1)], new=again))

    assert shared is not None
    assert shared.lengths.tolist() == [0, 4, 4]


def test_a_row_that_left_is_missed_and_one_that_came_joins() -> None:
    finder = shared_prefix()
    found(finder, decoding([[1, 2], [1, 2], [1, 2]]))

    assert found(finder, plan_of([(2, 8, 1)])) is None
    shared = found(finder, plan_of([(4, 8, 1), (2, 9, 1)], new=[state(4, 1, [1, 3])]))
    assert shared is not None
    assert shared.lengths.tolist() == [4, 4]


def test_a_new_row_is_compared_with_blocks_that_were_appended_since() -> None:
    finder = shared_prefix()
    found(finder, decoding([[1]]))

    grown = plan_of([(0, 12, 1)], appended=[(0, 1, 2), (0, 2, 3)])
    finder.apply(grown)
    shared = found(finder, plan_of([(0, 13, 1), (5, 12, 1)], new=[state(5, 1, [1, 2, 3])]))

    assert shared is not None
    assert shared.lengths.tolist() == [12, 12]


def test_a_plan_that_is_skipped_is_taken_over() -> None:
    finder = shared_prefix()
    finder.apply(decoding([[1, 2], [1, 3]]))

    shared = finder.find(plan_of([(0, 8, 1), (1, 8, 1)]))

    assert shared is not None


def test_the_groups_that_gain_the_most_are_kept() -> None:
    finder = SharedPrefix(
        num_slots=2 * MOST_GROUPS + 2,
        max_blocks=8,
        block_size=BLOCK_SIZE,
        rows_per_tile=4,
        savings=FREE,
    )
    pairs = [[100 + n] * (2 if n else 1) for n in range(MOST_GROUPS + 1)]

    shared = found(finder, decoding([blocks for blocks in pairs for _ in range(2)]))

    assert shared is not None
    assert shared.lengths.tolist() == [0, 0] + [8] * (2 * MOST_GROUPS)
    assert len(shared.tiles) == MOST_GROUPS


def test_words_hold_all_of_it_and_padding_that_shares_nothing() -> None:
    shared = found(shared_prefix(), decoding([[1, 2], [1, 3]]))
    assert shared is not None

    words = shared.words(num_rows=4, num_tiles=3)

    assert words[:4].tolist() == [4, 4, 0, 0]
    assert words[4:6].tolist() == [0, 1]
    assert words[8:].reshape(3, 4).tolist() == [shared.tiles[0].tolist(), [0] * 4, [0] * 4]


# The tree against what is found by looking at everything


def best_of(tables: Sequence[tuple[int, ...]], gain: Callable[[int, int], int], depth: int) -> int:
    """The most that groups of these tables, equal up to `depth`, can gain together."""
    if len(tables) < 2:
        return 0
    while all(len(table) > depth for table in tables) and len({t[depth] for t in tables}) == 1:
        depth += 1
    firsts = Counter(table[depth] for table in tables if len(table) > depth)
    apart = sum(
        best_of([t for t in tables if len(t) > depth and t[depth] == first], gain, depth + 1)
        for first in firsts
    )
    return max(gain(len(tables), depth) if depth else 0, apart)


def check(node: Node, gain: Callable[[int, int], int]) -> int:
    """The slots at a node and below, whose counts and gains are what they should be."""
    count = len(node.ended) + len(node.alone)
    for first, child in node.nodes.items():
        assert child.parent is node
        assert child.blocks[0] == first
        assert child.depth == node.depth + len(child.blocks)
        assert len(child.ended) + len(child.alone) + len(child.nodes) > 1
        count += check(child, gain)
    assert node.count == count
    assert sorted(node.members) == sorted(set(node.members))
    assert len(node.members) == count
    assert node.below == sum(child.best for child in node.nodes.values())
    if node.parent is not None:
        assert node.best == max(gain(count, node.depth), node.below)
    return count


@pytest.mark.parametrize("seed", range(30))
def test_any_coming_and_going_leaves_the_groups_that_gain_the_most(seed: int) -> None:
    random = Random(seed)
    savings = replace(FREE, row_bytes=random.choice((0, 1, 3)))
    table = np.zeros((NUM_SLOTS, 12), dtype=np.int32)
    num_full = np.zeros(NUM_SLOTS, dtype=np.int32)
    tree = PrefixTree(table, num_full, savings.gain)
    inside: dict[int, tuple[int, ...]] = {}
    for _ in range(60):
        slot = random.randrange(NUM_SLOTS)
        if slot in inside:
            tree.remove(slot)
            del inside[slot]
        else:
            blocks = [random.choice((1, 1, 1, 2, 3)) for _ in range(random.randint(0, 12))]
            table[slot, : len(blocks)] = blocks
            num_full[slot] = len(blocks)
            tree.insert(slot)
            inside[slot] = tuple(blocks)

        assert check(tree.root, savings.gain) == len(inside)
        groups = list(tree.groups())
        members = [slot for node in groups for slot in node.members]
        assert len(members) == len(set(members))
        for node in groups:
            assert len({inside[slot][: node.depth] for slot in node.members}) == 1
        gained = sum(savings.gain(node.count, node.depth) for node in groups)
        assert gained == best_of(list(inside.values()), savings.gain, 0)
