"""Completions: a short way from where a text stands to where its grammar lets it end.

The search is bounded, and knows what usually ends something: quotes and brackets, then separators,
then short values. It may miss a completion that exists, and finds one that is not the shortest.
"""

import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from ...messages import Bools, Ints, Longs, seal
from .backend import Matcher

Completion: TypeAlias = tuple[int, ...]
_Step: TypeAlias = tuple[Matcher, Completion]

THOROUGH = 4_000  # places looked at before a request is admitted
PROOF = 10_000  # to make certain that there is no completion
STEP = 2  # what a step of the search costs, where to check a completion costs one
LOOK = 8  # to look at what may follow at a place
NUM_KINDS = 129  # of tokens, by what they begin with
WIDE = 4 * LOOK  # and more where almost anything may follow
FEW = 2_000  # tokens that are faster sorted than found in the order of all
WIDTH = 6  # places followed at once where the way is not clear

_OPENING = re.compile(rb'""[\]}]*|"')
_QUOTES = re.compile(rb'"[\]}]*')
_CLOSERS = re.compile(rb"[\]}]+")
_SEPARATORS = re.compile(rb"[,:]")
_VALUES = re.compile(rb"\d|null|true|false")


class Effort:
    """How much may still be looked at: counted, so that the same texts get the same answers."""

    def __init__(self, most: int, whole: "Effort | None" = None) -> None:
        self._left = most
        self._whole = whole  # what it is a part of
        self.spent = 0  # on what was looked at; less than what parts were promised

    def take(self, cost: int = 1) -> bool:
        """Spend some; False once it is spent."""
        self._left -= cost
        self._count(cost)
        return self._left >= 0

    def part(self, most: int) -> "Effort":
        """So much of it, for one search."""
        taken = min(most, max(self._left, 0))
        self._left -= taken
        return Effort(taken, self)

    def _count(self, cost: int) -> None:
        self.spent += cost
        if self._whole is not None:
            self._whole._count(cost)


class Completer:
    """Finds completions for the texts of one vocabulary."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.size = len(pieces)
        self._pieces = pieces
        self._is_large = self.size // 8  # more choices than that: the inside of a string
        quotes, closers, separators = (
            _ranked(pieces, pattern) for pattern in (_QUOTES, _CLOSERS, _SEPARATORS)
        )
        values = _ranked(pieces, _VALUES, reverse=False)
        self._outside = (closers, separators, values, _ranked(pieces, _OPENING))
        self._inside = (quotes,)
        self._values = frozenset(values.tolist())
        self.is_plain = np.array([_is_plain(piece) for piece in pieces], dtype=np.bool_)
        self.is_closing = np.array([_is_closing(piece) for piece in pieces], dtype=np.bool_)
        lengths = np.array([len(piece) for piece in pieces], dtype=np.int32)
        self._order = seal(lengths.argsort(kind="stable"))  # ids, the shortest first
        self._places = seal(self._order.argsort())  # of each id in that order
        kinds = np.array([_kind_of(piece) for piece in pieces], dtype=np.int64)
        self._by_kind = seal(self._order[kinds[self._order].argsort(kind="stable")])
        self._kind_starts = seal(np.searchsorted(kinds[self._by_kind], np.arange(NUM_KINDS + 1)))

    def find(
        self, matcher: Matcher, most: int, effort: Effort, before: Completion = ()
    ) -> Completion | None:
        """A completion of at most `most` tokens, or None where none was found.

        Depth first, the most promising token at each place, until the end of the completion that
        was known `before` can follow.
        """
        path: list[int] = []
        places: list[tuple[int, Iterator[_Step]]] = [
            (0, iter([(matcher, ())]))
        ]  # (tokens before, what may follow there)
        while places and effort.take(STEP):
            count, following = places[-1]
            del path[count:]
            step = next(following, None)
            if step is None:
                places.pop()
                continue
            here, token_ids = step
            path += token_ids
            if len(path) > most:
                continue
            if here.may_end:
                return tuple(path)
            room = most - len(path)
            tail = _tail(here, before[-room:], effort) if room else ()
            if tail:
                return (*path, *tail)
            places.append((len(path), self._steps(here, path[-1:], effort)))
        return None

    def is_out_of_reach(self, matcher: Matcher, most: int, nodes: int = PROOF) -> bool:
        """Whether it is certain that no text of at most `most` tokens is whole: all of them were
        looked at. False where there are too many."""
        level = {b"": matcher}
        for _ in range(most):
            following: dict[bytes, Matcher] = {}
            for said, here in level.items():
                ids = self.allowed(here).nonzero()[0].tolist()
                nodes -= len(ids)
                if here.may_end or nodes < 0:
                    return False
                for token_id in ids:  # how a text is cut into tokens makes no difference
                    text = said + self._pieces[token_id]
                    if text not in following:
                        following[text] = _then(here, [token_id])[0]
            level = following
        return not any(here.may_end for here in level.values())

    def after(
        self, matcher: Matcher, token_id: int, before: Completion, most: int, effort: Effort
    ) -> Completion | None:
        """A completion once a token was said: the one that was known `before` it, or none."""
        if most < 0 or not effort.take():
            return None
        if before[:1] == (token_id,):
            return before[1:] if len(before) - 1 <= most else None
        if completes(matcher, (token_id,)):
            return ()
        fits = 0 < len(before) <= most and completes(matcher, (token_id, *before))
        return before if fits else None

    def ends(self, matcher: Matcher, token_id: int) -> bool:
        """Whether nothing can follow this token."""
        if not completes(matcher, (token_id,)):
            return False
        after, _ = _then(matcher, [token_id])
        return not after.mask().any()

    def find_after(
        self, matcher: Matcher, token_id: int, before: Completion, most: int, effort: Effort
    ) -> Completion | None:
        """Any completion once a token was said."""
        return self.find(_then(matcher, [token_id])[0], most, effort, before)

    def _steps(self, matcher: Matcher, said: list[int], effort: Effort) -> "Iterator[_Step]":
        """What may follow, the most promising first."""
        forced = matcher.forced()
        if forced:
            yield _then(matcher, forced)
            return
        allowed = self.allowed(matcher)
        is_wide = bool(np.count_nonzero(allowed) > self._is_large)
        if not effort.take(LOOK + WIDE * is_wide):
            return
        candidates = self._candidates(allowed, said)
        for token_id in candidates:
            yield _then(matcher, [token_id])
        if not candidates:
            way_out = self._widen(matcher, effort)
            if way_out is not None:
                yield way_out

    def _candidates(self, allowed: Bools, said: Sequence[int]) -> list[int]:
        """The best token of each kind that usually ends something; digit after digit does not."""
        is_in_value = bool(said) and said[-1] in self._values
        is_inside = np.count_nonzero(allowed) > self._is_large
        best: list[int] = []
        for ranked in self._inside if is_inside else self._outside:
            among = ranked[allowed[ranked]]
            if len(among) and not (is_in_value and int(among[0]) in self._values):
                best.append(int(among[0]))
        return best

    def _widen(self, matcher: Matcher, effort: Effort) -> "_Step | None":
        """Breadth first, to the nearest place where the text may end or its way is clear.

        Of places equally far away where the same may follow, one is as good as the other; those
        with the least choice come first, for they have got somewhere.
        """
        level: list[_Step] = [(matcher, ())]
        while level:
            following: dict[bytes, tuple[int, _Step]] = {}
            for here, path in level:
                for token_id in self._spread(self.allowed(here)):
                    if not effort.take(LOOK):
                        return None
                    step, _ = _then(here, [token_id])
                    said = (*path, token_id)
                    if step.may_end or step.forced():
                        return step, said
                    mask = step.mask()
                    allowed = unpacked(mask, self.size)
                    if self._candidates(allowed, said):
                        return step, said
                    count = int(np.count_nonzero(allowed))
                    if count > self._is_large:
                        effort.take(WIDE)
                    following.setdefault(mask.tobytes(), (count, (step, said)))
            nearest = sorted(following.values(), key=lambda place: place[0])
            level = [step for _, step in nearest[:WIDTH]]
        return None

    def _spread(self, allowed: Bools) -> list[int]:
        """The longest tokens, and the shortest of each kind."""
        at = allowed[self._by_kind].nonzero()[0]
        first = at.searchsorted(self._kind_starts)  # of each kind among them, and an end
        shortest = self._by_kind[at[first[:-1][first[:-1] < first[1:]]]]
        longest = self._order[self._in_order(allowed)[-2:]]
        return list(dict.fromkeys([*shortest.tolist(), *longest.tolist()]))

    def by_length(self, allowed: Bools) -> Longs:
        """The ids of these tokens, the shortest first."""
        return self._order[self._in_order(allowed)]

    def sample(self, allowed: Bools, count: int) -> Longs:
        """So many of these tokens, from the shortest to the longest; with fewer, some twice."""
        places = self._in_order(allowed)
        if not len(places):
            return places
        return self._order[places[np.linspace(0, len(places) - 1, count).astype(np.int64)]]

    def _in_order(self, allowed: Bools) -> Longs:
        """The places of these tokens in the order of all, rising."""
        if np.count_nonzero(allowed) > FEW:
            return allowed[self._order].nonzero()[0]
        return np.sort(self._places[allowed.nonzero()[0]])

    def allowed(self, matcher: Matcher) -> Bools:
        """Which tokens may follow.  # [size]"""
        return unpacked(matcher.mask(), self.size)


def completes(matcher: Matcher, token_ids: Sequence[int]) -> bool:
    """Whether these tokens would make the text whole."""
    return matcher.follow(token_ids) > len(token_ids)


def _tail(matcher: Matcher, before: Completion, effort: Effort) -> Completion:
    """The shortest end of a completion that completes this text, too; nothing, if none does."""
    if not effort.take(1 + len(before) // 8):  # most are seen to fail at their first token
        return ()
    refused: set[int] = set()  # they often come again
    for place in range(len(before) - 1, -1, -1):
        if before[place] not in refused:
            end = before[place:]
            count = matcher.follow(end)
            if count > len(end):
                return end
            if not count:
                refused.add(before[place])
    return ()


def unpacked(words: Ints, size: int) -> Bools:
    """The first bits of a mask, one by one.  # [size]"""
    bits = np.unpackbits(words.view(np.uint8), bitorder="little", count=size)
    allowed: Bools = bits.view(np.bool_)
    return allowed


def packed(allowed: Bools, num_words: int) -> Ints:
    """A mask of so many words."""
    bits = np.zeros(32 * num_words, dtype=np.bool_)
    bits[: len(allowed)] = allowed
    words: Ints = np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)
    return words


def _then(matcher: Matcher, token_ids: Sequence[int]) -> "_Step":
    matcher = matcher.copy()
    for token_id in token_ids:
        matcher.accept(token_id)
    return matcher, tuple(token_ids)


def _ranked(pieces: Sequence[bytes], pattern: re.Pattern[bytes], *, reverse: bool = True) -> Longs:
    """The tokens that are nothing but this, the longest first unless told otherwise."""
    ids = [token_id for token_id, piece in enumerate(pieces) if pattern.fullmatch(piece)]
    if reverse:
        ids.sort(key=lambda token_id: -len(pieces[token_id]))
    return seal(np.array(ids, dtype=np.int64))


def _kind_of(piece: bytes) -> int:
    """Letters, digits and bytes beyond ASCII are one kind each; what else begins it, its own."""
    first = piece[:1]
    if first.isdigit():
        return ord("0")
    if first.isalpha():
        return ord("a") if first.islower() else ord("A")
    return min(piece[0], 128) if piece else 0


def _is_plain(piece: bytes) -> bool:
    """Whether it is text that means nothing but itself inside a string of JSON."""
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return False
    return bool(text) and text.isprintable() and not set(text) & set('"\\')


def _is_closing(piece: bytes) -> bool:
    """Whether it ends as a value of JSON ends that has a beginning and an end."""
    return piece.endswith((b'"', b"]", b"}"))
