"""What requests were told of logits in a life of the cores, and whether it is all and right."""

from collections.abc import Sequence

import numpy as np

from stepahead.gpu.logprobs import likeliest, log_softmax_at
from stepahead.gpu.oracle import Oracle
from stepahead.messages import Generate, TokensReady

TOP = 2


class ToldLogprobs:
    """Collects the entries of every request."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._entries: dict[int, list[tuple[int, list[tuple[int, float]]]]] = {}

    def note(self, report: TokensReady) -> None:
        told = report.logprobs
        if told is None:
            return
        ids, values, first = told.token_ids.tolist(), told.values.tolist(), 0
        for serial, position, count in zip(
            told.owners.tolist(), told.positions.tolist(), told.counts.tolist(), strict=True
        ):
            flat = list(zip(ids, values, strict=True))[first : first + count]
            self._entries.setdefault(serial, []).append((position, flat))
            first += count

    def check(self, request: Generate, said: Sequence[int], oracle: Oracle | None) -> int:
        """Each token told of once and in order, with the oracle's numbers (None: there were
        several); how many there were."""
        entries = self._entries.get(request.serial, [])
        params, num_prompt = request.params, len(request.prompt)
        positions = [position for position, _ in entries]
        start = max(params.prompt_logprobs_start, 1)
        of_prompt = range(start, num_prompt) if params.prompt_logprobs is not None else range(0)
        of_said = range(num_prompt, num_prompt + len(said)) if params.logprobs is not None else []
        if said:
            assert positions == [*of_prompt, *of_said], "told of too much or too little"
        else:
            assert positions == list(of_prompt[: len(positions)]), "told of what is not there"
        known = [*request.prompt.tolist(), *said]
        for position, told in entries:
            assert told[0][0] == known[position], "told of another token"
            if oracle is not None:
                logits = oracle.logits(
                    oracle.extend(oracle.empty, known[:position])[-1], self._vocab_size
                )
                expected = log_softmax_at(logits, logits)
                best = likeliest(logits, TOP).tolist()
                assert [token_id for token_id, _ in told[1:]] == best
                assert all(np.isclose(value, expected[i], atol=1e-5) for i, value in told)
        return len(entries)
