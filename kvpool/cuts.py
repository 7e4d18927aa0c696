"""Which tails give enough blocks back: pure arithmetic over block tables."""

from collections.abc import Collection, Iterable, Sequence


def plan_cuts(
    victims: Iterable[int],
    tables: Sequence[Sequence[int]],
    refs: Sequence[int],
    lacking: int,
    keep: Collection[int] = (),
) -> tuple[dict[int, int], int]:
    """How many blocks each victim keeps so that `lacking` blocks come free, and how many do.

    Victims (slots) are taken one after the other, each from its tail, and no further than needed;
    one that would give nothing is left alone. A block counts when nobody would refer to it any
    more: when only this victim does, or only victims that have come so far. Those in `keep` do
    not count.
    """
    cuts: dict[int, int] = {}
    gained = 0
    shared: dict[int, list[tuple[int, int]]] = {}  # block → the (slot, index) seen so far
    for slot in victims:
        table = tables[slot]
        for index in range(len(table) - 1, -1, -1):
            if gained >= lacking:
                return cuts, gained
            block = table[index]
            if block in keep:
                continue
            places = [(slot, index)]
            if refs[block] > 1:
                places = shared.setdefault(block, [])
                places.append((slot, index))
                if len(places) < refs[block]:
                    continue
            gained += 1
            for holder, place in places:
                cuts[holder] = min(place, cuts.get(holder, place))
    return cuts, gained
