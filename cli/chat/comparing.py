"""The last answer beside one of another seed: what both say, and where they part."""

import random
import re
from dataclasses import replace
from itertools import takewhile

from ..mistake import Mistake
from ..render import table
from ..runner import progress
from .conversation import Chat

MOST_SEED = 2**31  # of those that are drawn: short enough to be typed
_BEGUN_WORD = re.compile(r"(?<=\s)\S{1,20}$")


async def diff(chat: Chat, words: str) -> None:
    """Answer the last question with this seed, or with any; the conversation stays as it is."""
    if not chat.session.exchanges:
        chat.say("There is no answer to compare yet.")
        return
    params = replace(chat.params, seed=_seed(words))
    if params.temperature == 0:
        chat.say("With temperature 0 every seed gives the same answer; see /set.")
        return
    with progress(f"answering with seed {params.seed}"):
        other = await chat.ask_aside(params)
    said = chat.session.exchanges[-1].answer
    if said == other.text:
        chat.say(f"With seed {params.seed} the answer is the same.")
        return
    both, rest, other_rest = parted(said, other.text)
    rows = [("said", rest), (f"seed {params.seed}", other_rest)]
    chat.say(table([("both", both), *rows] if both else rows).rstrip("\n"))
    chat.remark(f"(to go on with the other one: /set seed {params.seed}, then /regen)")


def _seed(words: str) -> int:
    if not words:
        return random.randrange(MOST_SEED)
    try:
        return int(words)
    except ValueError:
        raise Mistake(f"{words!r} is no seed; give a whole number, or none for any") from None


def parted(one: str, other: str) -> tuple[str, str, str]:
    """What both begin with, in whole words where there are such, and how each goes on."""
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    shared = _BEGUN_WORD.sub("", one[: len(list(alike))])
    return shared, one[len(shared) :], other[len(shared) :]
