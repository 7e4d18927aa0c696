"""What a step changes in the tables of a device, as updates that a kernel can write."""

import numpy as np
import pytest

from stepahead.messages.arrays import Ints, frozen_ints

from .paged_devices import Changes, TableShape

SHAPES = (TableShape("the tokens", 4, 3000, end=96), TableShape("another", 4, 2))


def applied(changes: Changes) -> list[Ints]:
    """The tables, after updates as the kernel's reference makes them."""
    tables = [np.full((shape.lines, shape.words), -7, dtype=np.int32) for shape in SHAPES]
    updates, values = changes.columns()
    for table, line, start, count, first in updates.tolist():
        tables[table][line, start : start + count] = values[first : first + count]
    return tables


def test_long_stretches_are_cut_to_what_a_program_writes() -> None:
    changes = Changes(SHAPES)
    tokens = frozen_ints(np.arange(2500) % 96)

    changes.write(1, 3, 0, frozen_ints([-1, 2**31 - 1]))
    changes.write(0, 2, 17, tokens)
    changes.write(0, 1, 5, frozen_ints([]))

    updates, values = changes.columns()
    assert updates[:, 3].tolist() == [2, 1024, 1024, 452]
    assert len(values) == 2502
    first, second = applied(changes)
    assert first[2, 17:2517].tolist() == tokens.tolist()
    assert np.count_nonzero(first != -7) == 2500
    assert second[3].tolist() == [-1, 2**31 - 1]


def test_single_words_go_each_to_its_place() -> None:
    changes = Changes(SHAPES)
    changes.write(0, 0, 0, frozen_ints([1]))

    changes.write_each(0, np.array([3, 1]), np.array([2999, 0]), frozen_ints([8, 9]))

    table = applied(changes)[0]
    assert [table[0, 0], table[3, 2999], table[1, 0]] == [1, 8, 9]


def test_nothing_is_no_update() -> None:
    updates, values = Changes(SHAPES).columns()

    assert updates.shape == (0, 5)
    assert values.shape == (0,)


@pytest.mark.parametrize(
    ("place", "words"),
    [((0, 4, 0), [1]), ((0, -1, 0), [1]), ((0, 0, 2999), [1, 2]), ((0, 0, -1), [1])],
)
def test_a_stretch_that_leaves_its_table_is_refused(
    place: tuple[int, int, int], words: list[int]
) -> None:
    with pytest.raises(IndexError, match="outside the tokens, which has 4 lines of 3000"):
        Changes(SHAPES).write(*place, frozen_ints(words))


@pytest.mark.parametrize("word", [-1, 96])
def test_a_word_that_a_table_cannot_hold_is_refused(word: int) -> None:
    with pytest.raises(ValueError, match="the tokens holds numbers from 0 to below 96"):
        Changes(SHAPES).write(0, 0, 0, frozen_ints([5, word]))
