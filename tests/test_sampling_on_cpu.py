"""Requests that adjust their logits, on the CPU device: against transformers, in any batch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stepahead.gpu.cpu import CpuDevice
from stepahead.messages import Adjustments
from stepahead.messages.token_bias import TokenBias

from .device_driver import generate, generate_drafted
from .test_cpu_device import PROMPTS, open_device
from .tiny_models import make_folder

NUM_TOKENS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model"), "llama", initializer_range=0.5)


@pytest.fixture
def device(folder: Path) -> Iterator[CpuDevice]:
    device = open_device(folder)
    yield device
    device.close()


def test_repetition_ngrams_and_bans_equal_those_of_transformers(
    folder: Path, device: CpuDevice
) -> None:
    """They define these parameters; both count the prompt."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for wants, options in (
        (Adjustments(repetition_penalty=1.8), {"repetition_penalty": 1.8}),
        (Adjustments(no_repeat_ngram_size=2), {"no_repeat_ngram_size": 2}),
        (Adjustments(bad_words=((7,), (20,), (33,))), {"bad_words_ids": [[7], [20], [33]]}),
        (
            Adjustments(repetition_penalty=0.6, no_repeat_ngram_size=3, bad_words=((5,),)),
            {"repetition_penalty": 0.6, "no_repeat_ngram_size": 3, "bad_words_ids": [[5]]},
        ),
    ):
        expected = [
            model.generate(
                torch.tensor([prompt]),
                max_new_tokens=NUM_TOKENS,
                do_sample=False,
                eos_token_id=None,
                **options,
            )[0, len(prompt) :].tolist()
            for prompt in PROMPTS
        ]
        assert generate(device, PROMPTS, NUM_TOKENS, chunk=4, adjustments=wants) == expected


def test_adjusted_draws_are_the_same_alone_and_verified_from_drafts(device: CpuDevice) -> None:
    wants = Adjustments(
        repetition_penalty=1.3,
        frequency_penalty=0.7,
        presence_penalty=-0.4,
        logit_bias=TokenBias({4: 3.0, 9: float("-inf")}),
        bad_words=((3, 4), (11,)),
        no_repeat_ngram_size=3,
    )
    sampling: dict[str, Any] = {"temperature": 1.5, "top_p": 0.95, "typical_p": 0.9, "seed": 5}

    together = generate(device, PROMPTS, NUM_TOKENS, adjustments=wants, **sampling)
    alone = [
        generate(device, [p], NUM_TOKENS, chunk=3, adjustments=wants, **sampling)[0]
        for p in PROMPTS
    ]
    drafted, steps = generate_drafted(
        device, PROMPTS, together, wrong_every=5, adjustments=wants, **sampling
    )

    assert alone == together
    assert drafted == together
    assert steps < NUM_TOKENS - 1
    plain = generate(device, PROMPTS, NUM_TOKENS, **sampling)
    assert plain != together
