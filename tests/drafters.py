"""Scripted drafters: right, wrong, partly right and random guesses."""

import random

from stepahead.gpu.oracle import Oracle
from stepahead.messages import Generate, Ints


class ScriptedDrafter:
    """Knows the oracle's answer, and says more or less of it, the same at the same place."""

    def __init__(self, oracle: Oracle, kinds: tuple[str, ...], *, most: int = 4) -> None:
        self._oracle = oracle
        self._kinds = kinds
        self._most = most

    def most(self, request: Generate) -> int:
        return 0 if self._kind(request) == "none" else self._most

    def draft(self, request: Generate, token_ids: Ints, most: int) -> list[int]:
        rng = random.Random(len(token_ids) * 1000 + request.serial)
        right = self._follow(token_ids.tolist(), most)
        match self._kind(request):
            case "right":
                return right
            case "wrong":
                return [token_id + 1 for token_id in right]
            case "partly":
                wrong_from = rng.randint(0, most)
                return [*right[:wrong_from], *(token_id + 1 for token_id in right[wrong_from:])]
            case "random":
                return [rng.choice([token_id, 256, 33]) for token_id in right][
                    : rng.randint(0, most)
                ]
            case kind:
                raise AssertionError(f"a drafter of kind {kind}")

    def _kind(self, request: Generate) -> str:
        return self._kinds[request.serial % len(self._kinds)]

    def _follow(self, token_ids: list[int], count: int) -> list[int]:
        """What the oracle goes on to say, also past an EOS."""
        prefix = self._oracle.extend(self._oracle.empty, token_ids)[-1]
        said: list[int] = []
        for _ in range(count):
            said.append(self._oracle.next_token(prefix))
            prefix = self._oracle.extend(prefix, said[-1:])[0]
        return said
