"""What a request hears in an undisturbed run: the oracle's answer, cut by the plainest code."""

from dataclasses import dataclass

from stepahead import FinishReason
from stepahead.actors.text.toy import EOS, ToyTokenizer
from stepahead.gpu.oracle import EMPTY, Oracle

from .script import Settings, Submit


@dataclass(frozen=True, slots=True)
class Expected:
    """The whole answer."""

    token_ids: list[int]
    text: str
    reason: FinishReason


def expected(submit: Submit, settings: Settings) -> Expected:
    oracle = Oracle(eos_every=settings.eos_every)
    prompt = submit.prompt()
    limit = min(submit.max_tokens, settings.max_model_len - len(prompt))
    stops = {*submit.stop_token_ids, *(() if submit.ignore_eos else ToyTokenizer().eos_token_ids)}
    prefix = oracle.extend(EMPTY, prompt)[-1]
    said: list[int] = []
    shown = open_text = ""  # the whole text, and the part in which a stop string may be
    while len(said) < limit:
        may_stop = len(said) >= submit.min_tokens
        said.append(oracle.next_token(prefix, banned=() if may_stop else tuple(stops)))
        if said[-1] in stops:
            return Expected(said, shown, FinishReason.STOP)
        letter = "" if said[-1] == EOS else chr(said[-1])
        shown += letter
        open_text += letter if may_stop else ""
        found = max((stop for stop in submit.stop if stop in open_text), key=len, default=None)
        if found is not None:
            return Expected(said, shown[: -len(found)], FinishReason.STOP)
        prefix = oracle.extend(prefix, said[-1:])[0]
    return Expected(said, shown, FinishReason.LENGTH)
