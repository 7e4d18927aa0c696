"""100,000 draws of each mix of parameters, held against what a float64 reference expects."""

from typing import Any

import numpy as np
import pytest

from stepahead.gpu.adjuster import Adjuster
from stepahead.gpu.sampling import sample
from stepahead.messages import Adjustments, frozen_ints, frozen_longs
from stepahead.messages.token_bias import TokenBias

from .device_driver import make_row
from .sampling_reference import adjusted, probabilities
from .test_sampling import VOCAB, make_logits, make_rows

DRAWS = 100_000
PROMPT, SAID = [3, 4, 5, 5], [7, 8, 7, 7, 1, 2, 7]

PENALTIES: dict[str, Any] = {
    "repetition_penalty": 1.4,
    "frequency_penalty": 0.3,
    "presence_penalty": -0.5,
}
BIASES: dict[str, Any] = {"logit_bias": TokenBias({3: 2.0, 9: -np.inf, 11: -1.5})}
BANS: dict[str, Any] = {
    "allowed_token_ids": tuple(range(2, 30)),
    "bad_words": ((2, 7, 12),),
    "no_repeat_ngram_size": 2,
}


@pytest.mark.parametrize(
    ("cuts", "adjustments"),
    [
        ({}, {}),
        ({"temperature": 0.5}, {}),
        ({"temperature": 2.0, "top_k": 5}, {}),
        ({"top_p": 0.8}, {}),
        ({"min_p": 0.1}, {}),
        ({"typical_p": 0.6}, {}),
        ({"temperature": 1.5, "top_k": 20, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.9}, {}),
        ({}, PENALTIES),
        ({"top_p": 0.9}, BIASES),
        ({"temperature": 0.8, "top_k": 10}, PENALTIES | BIASES),
        (
            {"temperature": 1.3, "top_k": 25, "top_p": 0.97, "min_p": 0.01, "typical_p": 0.95},
            PENALTIES | BIASES | BANS,
        ),
    ],
)
@pytest.mark.usefixtures("one_thread")
def test_tokens_are_drawn_with_the_reference_probabilities(
    cuts: dict[str, Any], adjustments: dict[str, Any]
) -> None:
    logits = make_logits(1)
    wants = Adjustments(**adjustments)
    expected = DRAWS * probabilities(adjusted(logits[0], PROMPT, SAID, wants), **cuts)

    tokens = np.array([[*PROMPT, *SAID, 0]], dtype=np.int32)
    adjuster = Adjuster(tokens)
    adjuster.apply([make_row(0, PROMPT + SAID, [], num_prompt_tokens=4, adjustments=wants)])
    adjuster.adjust(logits, frozen_longs([0]), frozen_ints([len(PROMPT + SAID)]))
    sampled = sample(logits.repeat(DRAWS, axis=0), make_rows(DRAWS, seed=9, **cuts))
    drawn = np.bincount(sampled, minlength=VOCAB)

    assert drawn[expected == 0].sum() == 0
    common = expected >= 5
    chi_square = ((drawn - expected)[common] ** 2 / expected[common]).sum()
    freedom = common.sum() - 1
    assert chi_square < freedom + 4.5 * np.sqrt(2 * freedom) + 5
