"""Runs of published content: where they grow, part and end."""

import itertools
import random
from collections.abc import Sequence

import pytest

from stepahead.kvpool.prefix import PrefixIndex
from stepahead.messages import frozen_ints

SIZE = 4
ROOT = b"root"


def make_index(num_blocks: int = 64) -> PrefixIndex:
    return PrefixIndex(num_blocks, SIZE)


def publish(index: PrefixIndex, blocks: list[int], tokens: list[int], previous: int | None) -> None:
    before = ROOT if previous is None else previous
    index.publish(1, [(before, blocks)], frozen_ints(tokens))
    index.check()


def tokens(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


def test_what_follows_the_end_of_a_run_is_part_of_it() -> None:
    index = make_index()
    publish(index, [0, 1], tokens(0, 8), None)
    publish(index, [2], tokens(8, 4), 1)

    assert len(index._runs) == 1
    assert index.match(ROOT, frozen_ints(tokens(0, 16))) == [0, 1, 2]


def test_prompts_part_in_the_middle_of_a_run() -> None:
    index = make_index()
    publish(index, [0, 1, 2], tokens(0, 12), None)
    publish(index, [5], tokens(50, 4), 1)

    assert index.match(ROOT, frozen_ints([*tokens(0, 8), *tokens(50, 4)])) == [0, 1, 5]
    assert index.match(ROOT, frozen_ints(tokens(0, 12))) == [0, 1, 2]
    assert index.match(ROOT, frozen_ints([*tokens(0, 7), 99, *tokens(8, 4)])) == [0]


def test_an_end_that_was_lost_is_computed_again_under_another_id() -> None:
    index = make_index()
    publish(index, [0, 1, 2], tokens(0, 12), None)
    former = index.content(2)
    index.forget([2])
    index.check()
    publish(index, [3], tokens(8, 4), 1)

    assert index.content(3) != former
    assert index.match(ROOT, frozen_ints(tokens(0, 12))) == [0, 1, 3]


def test_nothing_is_found_behind_what_was_lost() -> None:
    index = make_index()
    publish(index, [0, 1, 2], tokens(0, 12), None)
    index.forget([1])
    index.check()

    assert index.match(ROOT, frozen_ints(tokens(0, 12))) == [0]


def test_a_run_that_lost_its_end_lets_go_of_its_tokens() -> None:
    index = make_index()
    publish(index, list(range(64)), tokens(0, 256), None)
    index.forget(list(range(63, 0, -1)))
    (run,) = index._runs.values()

    assert len(run.tokens) <= 4 * SIZE * 2
    assert index.match(ROOT, frozen_ints(tokens(0, 256))) == [0]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_found_is_what_a_table_of_whole_prefixes_would_find(seed: int) -> None:
    draw, index = random.Random(seed), make_index()
    table: dict[tuple[int, ...], int] = {}  # whole prefix → block
    free = list(range(64))
    for _ in range(60):
        prompt = [draw.randrange(2) for _ in range(4 * draw.randint(1, 6))]
        found = index.match(ROOT, frozen_ints(prompt))
        prefixes = _beginnings(prompt)
        known = itertools.takewhile(lambda prefix: prefix in table, prefixes)
        assert found == [table[prefix] for prefix in known]
        missing = prefixes[len(found) :]
        if len(missing) > len(free):  # some are lost, and with them all that follows them
            lost = set(draw.sample(sorted(table.values()), len(table) // 2))
            dead = [p for p in table if any(table[q] in lost for q in _beginnings(p))]
            gone = [table.pop(prefix) for prefix in dead]
            index.forget(gone)
            free += gone
        elif missing:
            blocks = [free.pop() for _ in missing]
            publish(index, blocks, prompt[len(found) * SIZE :], found[-1] if found else None)
            table.update(zip(missing, blocks, strict=True))
        index.check()


def _beginnings(prompt: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(prompt[:end]) for end in range(SIZE, len(prompt) + 1, SIZE)]
