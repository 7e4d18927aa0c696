"""Sampling parameters that have no meaning are refused with a sentence that names them."""

import math

import pytest

from stepahead import RequestRejected, SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("max_tokens", "many"),
        ("min_tokens", -1),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "warm"),
        ("temperature", 10**400),
        ("max_tokens", 2**63),
        ("top_k", 2**63),
        ("temperature", None),
        ("top_k", -1),
        ("top_k", 2.0),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("seed", -1),
        ("seed", 2**63),
        ("seed", 1.0),
        ("stop", ("",)),
        ("stop", (1,)),
        ("stop", 5),
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", ("a",)),
        ("stop_token_ids", 5),
        ("ignore_eos", "yes"),
        ("skip_special_tokens", 1),
        ("include_stop_str_in_output", None),
    ],
)
def test_a_value_without_meaning_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(RequestRejected, match=name if value != ("",) else "stop string"):
        SamplingParams(**{name: value})  # type: ignore[arg-type]  # on purpose


def test_more_tokens_at_least_than_at_most_are_refused() -> None:
    with pytest.raises(RequestRejected, match="min_tokens is 5, more than max_tokens"):
        SamplingParams(min_tokens=5, max_tokens=4)


def test_an_unknown_parameter_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=2)  # type: ignore[call-arg]  # on purpose


def test_a_single_stop_string_and_lists_are_taken_as_they_are_meant() -> None:
    params = SamplingParams(stop="end", stop_token_ids=[1, 2])  # type: ignore[arg-type]  # lenient

    assert params.stop == ("end",)
    assert params.stop_token_ids == (1, 2)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]  # lenient
    assert hash(params)


def test_a_very_large_top_k_is_allowed_and_keeps_everything() -> None:
    """Field case 046."""
    assert SamplingParams(top_k=10**7).top_k == 10**7


@pytest.mark.parametrize(
    ("stop", "fault"),
    [
        ("x" * 100_000, "a stop string has 100,000 characters; it may have 1,024"),
        (("x",) * 1_000, "stop has 1,000 strings; it may have 64"),
    ],
)
def test_stop_strings_that_would_hold_up_everybody_are_refused(
    stop: str | tuple[str, ...], fault: str
) -> None:
    with pytest.raises(RequestRejected, match=fault):
        SamplingParams(stop=stop)  # type: ignore[arg-type]  # a single text is taken, too
