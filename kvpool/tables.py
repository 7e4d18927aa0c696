"""Block tables: who refers to which block, and when it may be given to others."""

from .free import DueBlocks


class BlockTables:
    """A table for each slot, counts of references, and what was released behind a fence."""

    def __init__(self, num_blocks: int, num_slots: int) -> None:
        self.tables: list[list[int]] = [[] for _ in range(num_slots)]
        self.refs = [0] * num_blocks
        self.due = DueBlocks()
        self._fences = [0] * num_blocks  # the last step known to mention the block

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

    def refer(self, block: int) -> bool:
        """One more refers to a block. False says that it is free, and to be taken from there."""
        self.refs[block] += 1
        if self.refs[block] > 1:
            return True
        if block not in self.due:
            return False
        self.due.take(block)
        return True

    def drop(self, table: list[int], kept: int, fence: int) -> None:
        """Let go of all but the first `kept` blocks, in reverse, so that of one prefix the tail
        is reused before the head."""
        refs, fences = self.refs, self._fences
        for block in reversed(table[kept:]):
            fences[block] = max(fences[block], fence)
            refs[block] -= 1
            if refs[block] == 0:
                self.due.add(block, fences[block])
        del table[kept:]

    def check(self, done: int) -> None:
        """Assert that every count is right and that nothing due is free yet."""
        refs = [0] * len(self.refs)
        for table in self.tables:
            assert len(set(table)) == len(table), "a slot refers to a block twice"
            for block in table:
                refs[block] += 1
        assert refs == self.refs, "reference counts differ from the block tables"
        assert all(self._fences[block] > done for block in self.due), "a due block is free"
