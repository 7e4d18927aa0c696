"""What a request may hear: the oracle's answer, followed token by token with the plainest code."""

from collections.abc import Sequence

from stepahead import FinishReason
from stepahead.actors.text.toy import EOS, ToyTokenizer
from stepahead.gpu.oracle import Oracle

from .script import ReloadWeights, Script, Settings, Submit


def oracles_of(script: Script) -> list[Oracle]:
    """Those of the weights that are loaded, one after the other."""
    oracle = Oracle(eos_every=script.settings.eos_every)
    reloads = [o for o in script.operations if isinstance(o, ReloadWeights)]
    reloads.sort(key=lambda reload: reload.at)
    return [oracle, *(oracle.with_weights(reload.source) for reload in reloads)]


class Answer:
    """An undisturbed answer as it grows: its text, and how it ended, once it has."""

    def __init__(self, submit: Submit, settings: Settings, oracles: Sequence[Oracle]) -> None:
        self.text = ""
        self.reason: FinishReason | None = None
        self._submit = submit
        self._left = min(submit.max_tokens, settings.max_model_len - len(submit.prompt()))
        eos = () if submit.ignore_eos else ToyTokenizer().eos_token_ids
        self._stops = {*submit.stop_token_ids, *eos}
        self._count = 0
        self._open_text = ""  # in which a stop string may be
        self._oracles = list(oracles)
        self._prefixes = [o.extend(o.empty, submit.prompt())[-1] for o in oracles]

    def says(self, token_id: int) -> bool:
        """Whether this may come next; weights change at any place, and in their order."""
        while self._oracles and self.next_token() != token_id:
            del self._oracles[0], self._prefixes[0]
        return bool(self._oracles)

    def next_token(self) -> int:
        """What comes next by the weights of now."""
        banned = () if self._count >= self._submit.min_tokens else tuple(self._stops)
        return self._oracles[0].next_token(self._prefixes[0], banned=banned)

    def push(self, token_id: int) -> None:
        may_stop = self._count >= self._submit.min_tokens
        self._count += 1
        for place, oracle in enumerate(self._oracles):
            self._prefixes[place] = oracle.extend(self._prefixes[place], [token_id])[0]
        if token_id in self._stops:
            self.reason = FinishReason.STOP
            return
        letter = "" if token_id == EOS else chr(token_id)
        self.text += letter
        self._open_text += letter if may_stop else ""
        found = [stop for stop in self._submit.stop if stop in self._open_text]
        if found:
            self.text = self.text[: -max(map(len, found))]
            self.reason = FinishReason.STOP
        elif self._count == self._left:
            self.reason = FinishReason.LENGTH


def whole_answer(submit: Submit, settings: Settings, oracle: Oracle) -> list[int]:
    """All that an undisturbed run says."""
    answer = Answer(submit, settings, [oracle])
    said: list[int] = []
    while answer.reason is None:
        said.append(answer.next_token())
        answer.push(said[-1])
    return said
