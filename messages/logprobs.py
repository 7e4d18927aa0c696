"""Logprobs between device and Detokenizer: what is asked of a row, and what is told of it.

All of them are raw: the log-softmax of the model's logits, before temperature, penalties, bans,
masks or anything else has changed them.
"""

from dataclasses import dataclass

from .arrays import Floats, Ints, Longs


@dataclass(frozen=True, slots=True)
class LogprobsWanted:
    """What is to be told of a row."""

    top: int = -1  # likeliest tokens beside each sampled one; -1: nothing is told of those
    token_ids: tuple[int, ...] = ()  # told of beside them, at every sampled token
    prompt_top: int = 0  # likeliest tokens beside each of the prompt's
    prompt_start: int = 0  # positions of the prompt that are still to be told of, up to
    prompt_end: int = 0  # this one


@dataclass(frozen=True, slots=True, eq=False)
class Logprobs:
    """What is told of tokens, each entry one token at one position; those of an owner follow one
    another, by position.

    An entry speaks of `counts` ids, which lie behind one another in the flat columns: the token
    itself first, then the likeliest, from the likeliest on, then those asked for, in their order.
    """

    owners: Longs  # of a step: indices into its plan's rows; of a report: serials
    positions: Ints  # the token's place in its sequence
    tops: Ints  # how many of the entry's ids are the likeliest
    counts: Ints
    token_ids: Ints  # flat, as the columns that follow
    values: Floats  # natural logarithms of probabilities
    ranks: Ints  # 1: no token is likelier

    def __len__(self) -> int:
        """Tokens that are told of."""
        return len(self.owners)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely a token was at its position, by the model's raw logits."""

    token_id: int
    logprob: float  # natural logarithm of its probability
    rank: int  # 1: no token was likelier
    text: str | None = None  # the token by itself, special ones by their names
    token_bytes: bytes | None = None  # the same: a token may be a part of a character


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """What is told of one position of a sequence."""

    token: TokenLogprob  # the one that stands there
    top: tuple[TokenLogprob, ...] = ()  # the likeliest, from the likeliest on
    asked: tuple[TokenLogprob, ...] = ()  # those of `logprob_token_ids`, in their order
