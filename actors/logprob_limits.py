"""How many logprobs a request may ask for: each takes time on the device and room in an answer."""

from dataclasses import replace

from ..messages import RequestRejected, SamplingParams

MAX_TOKEN_IDS = 1_024
WHOLE_VOCABULARY = -1


class LogprobLimits:
    """What one engine tells at most."""

    def __init__(self, vocab_size: int, max_logprobs: int) -> None:
        self._vocab_size = vocab_size
        self._most = max_logprobs

    def check(self, params: SamplingParams) -> None:
        """Raise RequestRejected for what is more."""
        for name, asked in (
            ("logprobs", params.logprobs),
            ("prompt_logprobs", params.prompt_logprobs),
        ):
            if asked is None:
                continue
            top = self._vocab_size if asked == WHOLE_VOCABULARY else asked
            if top > self._most:
                whole = " (the whole vocabulary)" if asked == WHOLE_VOCABULARY else ""
                raise RequestRejected(
                    f"{name} asks for {top:,} tokens at each position{whole}; this engine tells of "
                    f"at most {self._most:,} (max_logprobs in its configuration)"
                )
        if len(params.logprob_token_ids) > MAX_TOKEN_IDS:
            raise RequestRejected(
                f"logprob_token_ids has {len(params.logprob_token_ids):,} ids; "
                f"it may have {MAX_TOKEN_IDS:,}"
            )

    def counted(self, params: SamplingParams) -> SamplingParams:
        """The same with the whole vocabulary as a number."""
        if params.logprobs == WHOLE_VOCABULARY:
            params = replace(params, logprobs=self._vocab_size)
        if params.prompt_logprobs == WHOLE_VOCABULARY:
            params = replace(params, prompt_logprobs=self._vocab_size)
        return params


def check_start(params: SamplingParams, num_prompt: int) -> None:
    """Raise RequestRejected where a prompt has no position to tell of."""
    start = params.prompt_logprobs_start
    if params.prompt_logprobs is None and start:
        raise RequestRejected(
            f"prompt_logprobs_start is {start} without prompt_logprobs; "
            "say how many to tell of, 0 for the prompt's own tokens"
        )
    if start >= num_prompt:
        raise RequestRejected(
            f"prompt_logprobs_start is {start}, and the prompt has {num_prompt} tokens; "
            "it must be the position of one of them"
        )
