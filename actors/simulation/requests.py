"""Requests of a trace as Intake would post them: token ids that share what the trace shares."""

import numpy as np

from ...messages import Generate, Ints, SamplingParams, seal
from .trace import TraceRequest

PARAMS = SamplingParams(temperature=0, ignore_eos=True)


class RequestWriter:
    """Writes prompts: one odd id for all that is a request's own, an even one for its group's,
    and 0 for neither, since that is what a timed device answers.

    A block is found by all that is before it, so prompts share their group's leading tokens only.
    """

    def __init__(self, max_model_len: int) -> None:
        self._max_model_len = max_model_len
        self._groups: dict[str, int] = {}

    def fits(self, request: TraceRequest) -> bool:
        """Whether there is room for its prompt and a token after it."""
        return request.prompt_tokens < self._max_model_len

    def write(self, serial: int, request: TraceRequest) -> Generate:
        prompt = self._prompt(serial, request)
        room = self._max_model_len - request.prompt_tokens
        return Generate(
            serial=serial,
            request_id=f"r{serial}",
            prompt=prompt,
            params=PARAMS,
            seed=0,
            max_tokens=min(request.output_tokens, room),
            stop_token_ids=(),
            priority=request.priority,
            deadline_ns=None,
            queue_deadline_ns=None,
            cache_salt=b"",
        )

    def _prompt(self, serial: int, request: TraceRequest) -> Ints:
        prompt: Ints = np.full(request.prompt_tokens, 2 * serial + 1, dtype=np.int32)
        if request.prefix_group is not None:
            group = self._groups.setdefault(request.prefix_group, len(self._groups))
            prompt[: request.prefix_tokens] = 2 * group + 2
        seal(prompt)
        return prompt
