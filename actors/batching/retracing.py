"""Where a grammar stands is nowhere written down: its tokens determine it.

Who goes on with sequences from elsewhere opens their grammars anew and leads them along what was
said. They are asked what they were asked before, in the same order, since what a grammar found out
for one answer it may use for the next.
"""

from ...messages import NO_INTS, Generate, Ints, frozen_ints
from .grammar import Grammar
from .jumps import take_forced


def retrace(grammar: Grammar, request: Generate, said: list[int]) -> Ints:
    """Lead a grammar from its beginning along the tokens of an answer; returns what it allows
    next, nothing where it does not lead there."""
    place = 0
    while not grammar.is_over:
        mask = frozen_ints(grammar.mask())
        if place == len(said):
            return mask
        if not grammar.accept(said[place]):
            break
        place += 1
        if not grammar.is_over:
            forced = take_forced(grammar, request, request.max_tokens - place)
            if forced != said[place : place + len(forced)]:
                break
            place += len(forced)
    return NO_INTS
