"""What a request asks a device to tell of its logits."""

from ...messages import Generate, LogprobsWanted


def first_told(request: Generate) -> int:
    """The first position of the prompt that is to be told of; its length, if none is."""
    params = request.params
    if params.prompt_logprobs is None:
        return len(request.prompt)
    return max(params.prompt_logprobs_start, 1)  # nothing precedes the token at position 0


def wanted(request: Generate, prompt_told: int) -> LogprobsWanted | None:
    """What a device is to tell of a request that is told of its prompt up to `prompt_told`."""
    params, num_prompt = request.params, len(request.prompt)
    is_told = params.logprobs is not None or len(params.logprob_token_ids) > 0
    if not is_told and prompt_told >= num_prompt:
        return None
    return LogprobsWanted(
        top=(params.logprobs or 0) if is_told else -1,
        token_ids=params.logprob_token_ids,
        prompt_top=params.prompt_logprobs or 0,
        prompt_start=prompt_told,
        prompt_end=num_prompt,
    )
