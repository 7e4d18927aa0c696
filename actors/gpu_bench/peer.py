"""R2's other side: the same answers by the continuous batching of transformers, in this process."""

import time
from collections.abc import Sequence
from typing import Any

import torch

from ...gpu.models.config import ModelConfig
from .requests import Asked

_WARM_UP = 8  # tokens
_WAIT_S = 1.0
_BLOCK_SIZE = 256  # positions; its own default
_MAX_BATCH_TOKENS = 256


class Peer:
    """A Llama-like model of transformers with random weights on a device."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        """Raises ImportError where transformers is not installed, or has no continuous batching."""
        from transformers import LlamaConfig, LlamaForCausalLM
        from transformers.generation import ContinuousBatchingConfig  # noqa: F401  # or it ends here
        from transformers.utils import logging

        logging.set_verbosity_error()
        made = LlamaConfig(
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            intermediate_size=config.intermediate_size,
            vocab_size=config.vocab_size,
            max_position_embeddings=config.context_length,
            rms_norm_eps=config.rms_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
            tie_word_embeddings=config.tied_embeddings,
            bos_token_id=None,
            eos_token_id=None,
        )
        self._device = device
        with torch.device(device):  # its own first weights are normal numbers, too
            self._model: Any = LlamaForCausalLM._from_config(
                made, dtype=torch.bfloat16, attn_implementation="sdpa"
            ).eval()

    def seconds(self, asked: Sequence[Asked], *, is_async: bool, within_s: float) -> float:
        """How long all of them take together, greedily; graphs are made before, in a first run.
        Raises RuntimeError where tokens are missing, TimeoutError where both runs take longer.

        It has room for just these requests. Left to itself it takes all the memory there is, and
        without a library for attention it then fills a mask of every position in it, on the host
        as well, and copies that in every step.
        """
        from transformers import GenerationConfig
        from transformers.generation import ContinuousBatchingConfig

        output = max(one.output for one in asked)
        prompts = [list(one.prompt) for one in asked]
        generation = GenerationConfig(
            max_new_tokens=output, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        batching = ContinuousBatchingConfig(
            use_async_batching=is_async,
            block_size=_BLOCK_SIZE,
            num_blocks=sum(1 + -(-(len(one.prompt) + one.output) // _BLOCK_SIZE) for one in asked),
            max_batch_tokens=_MAX_BATCH_TOKENS,
        )
        until = time.perf_counter() + within_s
        with self._model.continuous_batching_context_manager(
            generation_config=generation, continuous_batching_config=batching
        ) as manager:
            answers(manager, prompts, _WARM_UP, until)
            began = time.perf_counter()
            num_tokens = answers(manager, prompts, output, until)
            seconds = time.perf_counter() - began
        if num_tokens != output * len(asked):
            raise RuntimeError(f"{num_tokens} tokens came of {output * len(asked)}")
        return seconds


def answers(manager: Any, prompts: list[list[int]], output: int, until: float) -> int:
    """Tokens that came. Raises RuntimeError where its thread has ended, TimeoutError where it is
    not done by then."""
    requests = manager.add_requests(inputs=prompts, max_new_tokens=output)
    num_tokens = finished = 0
    while finished < len(prompts):
        if time.perf_counter() > until:
            for request in requests:  # leaving its context computes all that is not cancelled
                manager.cancel_request(request)
            raise TimeoutError(f"{finished} of {len(prompts)} answers are there")
        result = manager.get_result(timeout=_WAIT_S)
        if result is not None and result.is_finished():
            finished += 1
            num_tokens += len(result.generated_tokens)
        elif result is None and not manager.is_running():
            raise RuntimeError("its generation has ended before its requests")
    return num_tokens
