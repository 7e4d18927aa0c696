"""Blocks in the order of their last use, against the OrderedDict that they would be."""

import random
from collections import OrderedDict

import pytest

from stepahead.kvpool.use_order import UseOrder

NUM_BLOCKS = 40


@pytest.mark.parametrize("seed", range(20))
def test_blocks_leave_in_the_order_of_their_last_use(seed: int) -> None:
    draw, order, plain = random.Random(seed), UseOrder(NUM_BLOCKS), OrderedDict[int, int]()
    for now in range(300):
        match draw.randrange(4):
            case 0 | 1:
                others = [block for block in range(NUM_BLOCKS) if block not in plain]
                blocks = draw.sample(others, draw.randint(0, len(others)))
                order.add(blocks, now)
                plain.update(dict.fromkeys(blocks, now))
            case 2:
                count = draw.randint(0, 12)
                popped = [plain.popitem(last=False)[0] for _ in range(min(count, len(plain)))]
                assert order.pop(count) == popped
            case _:
                for block in draw.sample(list(plain), len(plain) // 3):
                    order.take(block)
                    del plain[block]

        assert list(order) == list(plain)
        assert len(order) == len(plain)
        assert all((block in order) == (block in plain) for block in range(NUM_BLOCKS))
        assert order.oldest_ns == min(plain.values(), default=None)
        old = [block for block, since in plain.items() if since <= now - 5]
        assert order.unused_since(now - 5) == old


def test_what_is_found_again_and_again_leaves_no_entries_behind() -> None:
    order = UseOrder(NUM_BLOCKS)
    order.add(list(range(NUM_BLOCKS)), 0)
    for now in range(1_000):
        order.take(7)
        order.add([7], now)

    assert order._num_entries <= 2 * NUM_BLOCKS + 64 + 1
    assert len(order._rows) <= order._num_entries
