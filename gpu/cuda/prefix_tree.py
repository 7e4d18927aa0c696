"""PrefixTree: which slots' block tables begin alike. Integers and numpy only.

A radix tree (Morrison's PATRICIA, 1968) over block ids. Only what at least two slots share is a
node; a slot that goes on alone hangs on the last node it shares, and its blocks stay in the block
table. So a change costs the nodes on one slot's way, however many slots there are.
"""

from collections.abc import Callable, Iterator, KeysView
from dataclasses import dataclass, field

import numpy as np

from ...messages.arrays import Ints


@dataclass(slots=True, eq=False)
class Node:
    """Blocks that several slots have in common, from the first one on."""

    blocks: Ints  # from the parent's last block to this one's
    depth: int  # blocks from the first one on
    parent: "Node | None" = None
    count: int = 0  # slots that share them
    nodes: dict[int, "Node"] = field(default_factory=dict)  # by their first block
    alone: dict[int, int] = field(default_factory=dict)  # slots that go on alone, likewise
    ended: set[int] = field(default_factory=set)  # slots that have no further full block
    best: int = 0  # the most that groups of the slots here can gain
    below: int = 0  # the same, if they are not one group at this depth

    @property
    def members(self) -> list[int]:
        """The slots that share these blocks."""
        found: list[int] = []
        nodes = [self]
        while nodes:
            node = nodes.pop()
            found += node.ended
            found += node.alone.values()
            nodes += node.nodes.values()
        return found


class PrefixTree:
    """Slots by the blocks they begin with, and the groups of them that gain the most.

    Of slot s the first `num_full[s]` blocks of line s of the block table count; while a slot is in
    the tree these may become more, but none may change. `gain` tells what a group of so many slots
    that share so many blocks is worth.
    """

    def __init__(self, block_table: Ints, num_full: Ints, gain: Callable[[int, int], int]) -> None:
        self._table = block_table  # [slots, blocks]
        self._num_full = num_full  # [slots]
        self._gain = gain
        self.root = Node(block_table[0, :0], 0)
        self._homes: dict[int, tuple[Node, int | None]] = {}  # None: it ended there

    @property
    def slots(self) -> KeysView[int]:
        """Those in the tree."""
        return self._homes.keys()

    def insert(self, slot: int) -> None:
        """A slot that is not in the tree joins those it shares its first blocks with."""
        blocks, node = self._full_blocks(slot), self.root
        node.count += 1
        while (child := self._next(node, blocks)) is not None:
            node = child
            node.count += 1
        self._hang(slot, node, blocks)
        self._weigh(node)

    def remove(self, slot: int) -> None:
        """A slot leaves, whatever its line of the table holds by now."""
        home, first = self._homes.pop(slot)
        if first is None:
            home.ended.remove(slot)
        else:
            del home.alone[first]
        node: Node | None = home
        while node is not None:
            node.count -= 1
            node = node.parent
        self._weigh(self._tidied(home))

    def groups(self) -> Iterator[Node]:
        """Nodes without a slot in common whose gains add up to the most; none if none gains."""
        nodes = [self.root]
        while nodes:
            for node in nodes.pop().nodes.values():
                if node.best > node.below:
                    yield node
                elif node.best:
                    nodes.append(node)

    # How the tree grows and shrinks

    def _full_blocks(self, slot: int) -> Ints:
        blocks: Ints = self._table[slot, : self._num_full[slot]]
        return blocks

    def _next(self, node: Node, blocks: Ints) -> Node | None:
        """The node behind this one on the way along these blocks, made if somebody else's way is
        the same for a while."""
        if node.depth == len(blocks):
            return None
        rest = blocks[node.depth :]
        first = int(rest[0])
        child = node.nodes.get(first)
        if child is not None:
            same = _num_alike(child.blocks, rest)
            return child if same == len(child.blocks) else self._split(child, same)
        other = node.alone.pop(first, None)
        if other is None:
            return None
        others = self._full_blocks(other)
        same = _num_alike(others[node.depth :], rest)
        child = Node(rest[:same].copy(), node.depth + same, node, count=1)
        node.nodes[first] = child
        self._hang(other, child, others)
        return child

    def _split(self, node: Node, same: int) -> Node:
        """A node between this one and its parent, `same` blocks behind the parent."""
        parent = node.parent
        assert parent is not None, "the root has no blocks"
        middle = Node(node.blocks[:same], parent.depth + same, parent, node.count)
        middle.best = middle.below = node.best
        parent.nodes[int(node.blocks[0])] = middle
        node.blocks, node.parent = node.blocks[same:], middle
        middle.nodes[int(node.blocks[0])] = node
        return middle

    def _hang(self, slot: int, node: Node, blocks: Ints) -> None:
        first = int(blocks[node.depth]) if node.depth < len(blocks) else None
        if first is None:
            node.ended.add(slot)
        else:
            node.alone[first] = slot
        self._homes[slot] = (node, first)

    def _tidied(self, node: Node) -> Node:
        """The node, or its parent if nothing is shared here any more or all go on together."""
        parent = node.parent
        if parent is None or len(node.ended) + len(node.alone) + len(node.nodes) > 1:
            return node
        first = int(node.blocks[0])
        parent.below -= node.best
        if node.nodes:
            (child,) = node.nodes.values()
            child.blocks, child.parent = np.concatenate((node.blocks, child.blocks)), parent
            parent.nodes[first] = child
            parent.below += child.best
        else:
            (slot,) = node.members
            del parent.nodes[first]
            parent.alone[first] = slot
            self._homes[slot] = (parent, first)
        return parent

    def _weigh(self, node: Node) -> None:
        """What the slots of this node and of those above it gain at best."""
        while (parent := node.parent) is not None:
            best = max(self._gain(node.count, node.depth), node.below)
            parent.below += best - node.best
            node.best = best
            node = parent


def _num_alike(left: Ints, right: Ints) -> int:
    """How many numbers both begin with."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    place = int(differs.argmax()) if length else 0
    return place if length and differs[place] else length
