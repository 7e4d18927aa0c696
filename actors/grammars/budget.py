"""A request's grammar: its text ends in the form that was asked for before its tokens run out.

While many tokens are left everything is allowed that the grammar allows. When they become few, a
short completion of the text is kept at hand, and of what the grammar allows only that remains from
where a completion still fits. When nothing but the known completion fits, it alone is allowed.
"""

from collections.abc import Sequence

import numpy as np

from ...messages import Bools, Ints, seal
from .backend import Matcher
from .completion import LOOK, Completer, Completion, Effort, completes, packed, unpacked

NEAR = 32  # spare tokens beside a completion from which on each allowed token is looked at
MAX_TRIED = 32  # tokens tried one by one
MAX_ENDS = 256  # tokens of which is asked whether they end the text too early
TOKEN = 32 * LOOK  # what may be spent on the places around one token: 1 to 3 ms
SEARCH = 12 * LOOK  # of it, on a completion behind one of the tokens that are tried
MAX_FOUND = 8  # masks of which is kept what is safe
NUM_SAMPLED = 16  # tokens that stand for all those that are plain text


class BudgetedGrammar:
    """Where one request stands in its grammar, and how many tokens it has left."""

    def __init__(
        self,
        matcher: Matcher,
        completer: Completer,
        *,
        max_tokens: int,
        min_tokens: int = 0,
        shortest: Completion | None,
        eos_token_ids: Ints,
        may_jump: bool,
        near: int = NEAR,
        far: int = 0,
    ) -> None:
        """`shortest` is what is known of the beginning; no EOS, no end by one. From `near` spare
        tokens on every place is looked at, from `far` on those where few tokens may follow: there
        one of them may commit the text to many."""
        self._matcher = matcher
        self._completer = completer
        self._left = max_tokens
        self._late = max_tokens - min_tokens  # tokens left from which on the text may end
        fits = shortest is not None and len(shortest) <= max_tokens
        self._known = shortest if fits else None
        self._usual = self._known or ()  # the last completion that had to be looked for
        self._near = near
        self._far = max(near, far)
        watched = max(4 * near, far)
        self._watched = 2 * len(shortest) + watched if shortest is not None and fits else 0
        self._effort = Effort(TOKEN)
        self._next_search = max_tokens  # tokens left when it is worth to look again
        self._ends = np.zeros(-(-completer.size // 32), dtype=np.int32)  # a mask of EOS
        np.bitwise_or.at(self._ends, eos_token_ids // 32, np.int32(1) << eos_token_ids % 32)
        self._may_jump = may_jump
        self._allowed: Ints | None = None  # what the grammar lets follow, once it is computed
        self._words: Ints | None = None  # what may follow of it, likewise
        self._is_over: bool | None = None  # likewise
        # Of masks, beside what was known then: how many tokens may have to follow, what is safe.
        self._found: dict[tuple[bytes, Completion], tuple[int, Ints]] = {}
        self.is_steered = False

    # What the Batcher asks

    def accept(self, token_id: int) -> bool:
        if not self._matcher.accept(token_id):
            return False
        self._left -= 1
        self._allowed = self._words = self._is_over = None
        self._effort = Effort(TOKEN)
        known = self._known
        if known is not None and known[:1] == (token_id,):
            self._known = known[1:]
        elif self._left <= self._watched:
            self._know_again(known)
        else:
            self._known = None  # of a place that was left
        return True

    def mask(self) -> Ints:
        return seal(self._text | self._ends if self._matcher.may_end else self._text)

    def forced(self) -> Sequence[int]:
        """Tokens that follow for certain."""
        if not self._may_jump or self.is_over:
            return ()
        if self._is_last_way:
            assert self._known is not None
            return self._known
        forced = tuple(self._matcher.forced())
        return forced if forced and self._takes(forced) else ()

    @property
    def cost(self) -> int:
        """What was looked at for the last token, its own mask included; 256 take 1 to 3 ms."""
        return LOOK + self._effort.spent

    @property
    def is_over(self) -> bool:
        """Whether nothing may follow, or the text is whole and nothing more fits."""
        if self._is_over is None:
            may_end = self._matcher.may_end
            self._is_over = may_end and not self._follow.any()
            if may_end and not self._is_over and self._known == ():
                self._is_over = self.is_steered = not self._text.any()
        return self._is_over

    @property
    def _follow(self) -> Ints:
        """The mask of what the grammar allows, but for an end of sequence."""
        if self._allowed is None:
            self._allowed = self._matcher.mask()
        return self._allowed

    @property
    def _text(self) -> Ints:
        """The mask of what may follow, but for an end of sequence."""
        if self._words is None:
            self._words = self._follow
            if self._known is not None and self._is_watched(
                self._words, self._left - len(self._known)
            ):
                self._words = self._within_reach(self._words, self._known)
            if self._left - 1 > self._late:
                self._words = self._that_go_on(self._words)
        return self._words

    def _is_watched(self, words: Ints, spare: int) -> bool:
        """Whether each token that may follow is looked at."""
        return spare <= self._near or (spare <= self._far and 1 < _count(words) <= MAX_TRIED)

    # Completions

    def _know_again(self, before: Completion | None) -> None:
        """Keep what is known, if it still leads to an end, or look for another completion."""
        usual = before or self._usual
        if self._matcher.may_end:
            self._known = ()
        elif before is not None and len(usual) <= self._left and completes(self._matcher, usual):
            self._known = usual
        elif self._left > self._next_search and before is None:
            self._known = None
        else:
            self._known = self._completer.find(self._matcher, self._left, self._effort, usual)
            self._usual = self._known or usual
            self._next_search = self._left - self._left // 4 - 1

    def _takes(self, forced: Completion) -> bool:
        """Whether the text can still be brought to an end behind these tokens; then that is known
        from now on, also half way through them."""
        known = self._known
        if known is None or known[: len(forced)] == forced:
            return True
        matcher = self._matcher.copy()
        if not all(map(matcher.accept, forced)):
            return False
        left = self._left - len(forced)
        after = self._completer.find(matcher, left, self._effort, known) if left > 0 else None
        if after is not None:
            self._known = (*forced, *after)
            return True
        if self._left - len(known) <= self._near:
            return False
        self._known, self._next_search = None, left  # it is looked for again behind them
        return True

    # Masks

    @property
    def _is_last_way(self) -> bool:
        return self._known is not None and 0 < self._left <= len(self._known)

    def _within_reach(self, words: Ints, known: Completion) -> Ints:
        """Of these tokens those behind which the text can still be brought to an end."""
        if self._is_last_way:
            self.is_steered = True
            safe = np.zeros(self._completer.size, dtype=np.bool_)
            safe[known[0]] = True
            return packed(safe, len(words))
        key = (words.tobytes(), known)
        found = self._found.get(key)
        if found is None or found[0] >= self._left:
            most, safe = self._safe(unpacked(words, self._completer.size), known)
            if len(self._found) == MAX_FOUND:
                self._found.clear()
            found = self._found[key] = most, packed(safe, len(words))
        return found[1]

    def _safe(self, allowed: Bools, known: Completion) -> tuple[int, Bools]:
        """All are tried where they are few; else a sample of plain text speaks for all of it.
        With them, how many tokens may have to follow."""
        completer, most = self._completer, max(len(known), 1) - 1
        safe = np.zeros(completer.size, dtype=np.bool_)
        safe[list(known[:1])] = True
        if np.count_nonzero(allowed) > MAX_TRIED:
            plain = allowed & completer.is_plain
            sample = completer.sample(plain, NUM_SAMPLED).tolist()
            kept = [token_id for token_id in sample if self._after(token_id, known) is not None]
            if len(kept) == len(sample):
                safe |= plain
            safe[kept] = True
            most = len(known) if kept else most
            allowed = allowed & ~completer.is_plain
        tried = completer.by_length(allowed)[:MAX_TRIED].tolist()
        ways = {token_id: self._after(token_id, known) for token_id in tried}
        for token_id, after in ways.items():
            found = after if after is not None else self._search(token_id, known)
            if found is not None:
                safe[token_id] = True
                most = max(most, len(found))
        return most, safe

    def _that_go_on(self, words: Ints) -> Ints:
        """Of these tokens those behind which the text can go on; all, if none can. Where they are
        many only those are looked at that close something."""
        allowed = unpacked(words, self._completer.size)
        may_close = allowed if _count(words) <= MAX_ENDS else allowed & self._completer.is_closing
        goes_on = allowed.copy()
        for token_id in may_close.nonzero()[0][:MAX_ENDS].tolist():
            goes_on[token_id] = not self._completer.ends(self._matcher, token_id)
        return packed(goes_on, len(words)) if goes_on.any() else words

    def _after(self, token_id: int, known: Completion) -> Completion | None:
        left = self._left - 1
        return self._completer.after(self._matcher, token_id, known, left, self._effort)

    def _search(self, token_id: int, known: Completion) -> Completion | None:
        """Another completion behind a token that makes one necessary."""
        effort, left = self._effort.part(SEARCH), self._left - 1
        return self._completer.find_after(self._matcher, token_id, known, left, effort)


def _count(words: Ints) -> int:
    """How many tokens a mask allows."""
    return int(np.bitwise_count(words.view(np.uint32)).sum())  # of an int, its size is counted
