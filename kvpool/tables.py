"""Block tables: who refers to which block, and when it may be given to others."""

from .free import DueBlocks


class BlockTables:
    """A table for each slot, counts of references, and what was released behind a fence."""

    def __init__(self, num_blocks: int, num_slots: int) -> None:
        self.tables: list[list[int]] = [[] for _ in range(num_slots)]
        self.refs = [0] * num_blocks
        self.due = DueBlocks()
        self._fences: dict[int, int] = {}  # of held blocks: the last step of who let go of them

    @property
    def referred(self) -> set[int]:
        """The blocks that sequences refer to."""
        return {block for table in self.tables for block in table}

    def hold(self, blocks: list[int]) -> list[int]:
        """Free blocks have got their first holder."""
        refs = self.refs
        for block in blocks:
            refs[block] = 1
        return blocks

    def refer(self, blocks: list[int]) -> list[int]:
        """One more refers to these blocks; returns those that are free, to be taken from there."""
        refs, due = self.refs, self.due
        unheld = [block for block in blocks if not refs[block]]
        for block in blocks:
            refs[block] += 1
        if not due:
            return unheld
        self._fences.update({block: due.take(block) for block in unheld if block in due})
        return [block for block in unheld if block not in self._fences]

    def drop(self, table: list[int], kept: int, fence: int) -> None:
        """Let go of all but the first `kept` blocks, in reverse, so that of one prefix the tail
        is reused before the head."""
        refs, fences = self.refs, self._fences
        alone: list[int] = []
        for block in reversed(table[kept:]):
            count = refs[block] = refs[block] - 1
            if count:
                fences[block] = max(fences.get(block, 0), fence)
            elif fences and (others := fences.pop(block, 0)) > fence:
                self.due.add((block,), others)
            else:
                alone.append(block)
        self.due.add(alone, fence)
        del table[kept:]

    def check(self, done: int) -> None:
        """Assert that every count is right and that nothing due is free yet."""
        refs = [0] * len(self.refs)
        for table in self.tables:
            assert len(set(table)) == len(table), "a slot refers to a block twice"
            for block in table:
                refs[block] += 1
        assert refs == self.refs, "reference counts differ from the block tables"
        assert all(refs[block] for block in self._fences), "a fence of a block that nobody holds"
        next_fence = self.due.next_fence
        assert next_fence is None or next_fence > done, "a due block is free"
