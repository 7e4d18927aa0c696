"""Sampling parameters that have no meaning are refused with a sentence that names them."""

import json
import math
import pickle
from dataclasses import fields, replace
from pathlib import Path
from typing import get_type_hints

import click
import numpy as np
import pytest

from stepahead import RequestRejected, SamplingParams
from stepahead.cli.sampling_options import SamplingOptions, sampling_options
from stepahead.messages.param_docs import with_table
from stepahead.messages.param_rules import Param
from stepahead.messages.params import PARAMETERS


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
        ("typical_p", 0),
        ("typical_p", 1.1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", math.nan),
        ("repetition_penalty", 0),
        ("repetition_penalty", math.inf),
        ("logit_bias", {3: 1e300}),
        ("logit_bias", {3: math.nan}),
        ("logit_bias", {3: math.inf}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {"three": 1.0}),
        ("logit_bias", {"-3": 1.0}),
        ("logit_bias", {3: np.float32("nan")}),
        ("temperature", np.float32("inf")),
        ("top_k", np.bool_(True)),
        ("stop_token_ids", [[1]]),
        ("logit_bias", {3: True}),
        ("logit_bias", [3]),
        ("allowed_token_ids", ()),
        ("allowed_token_ids", (-1,)),
        ("bad_words", (3,)),
        ("no_repeat_ngram_size", -1),
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


class _Unshown:
    def __repr__(self) -> str:
        raise RuntimeError("half made")


@pytest.mark.parametrize(
    "value",
    [_Unshown(), np.eye(2), 10**5_000, "a\nb", [object()] * 99],
    ids=["unshown", "matrix", "huge", "lines", "many"],
)
@pytest.mark.parametrize("name", [*PARAMETERS])
def test_what_is_wrong_is_said_in_one_line_whatever_was_given(name: str, value: object) -> None:
    if isinstance(value, str) and name in ("stop", "bad_words", "logits_processors"):
        return
    with pytest.raises(RequestRejected) as refusal:
        SamplingParams(**{name: value})  # type: ignore[arg-type]  # on purpose

    assert name in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300


def test_numbers_of_numpy_are_numbers_and_are_kept_as_plain_ones() -> None:
    given = SamplingParams(
        top_k=np.int64(3),  # type: ignore[arg-type]  # on purpose
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        stop_token_ids=list(np.arange(2)),  # type: ignore[arg-type]
        logit_bias={np.int32(7): np.float32(2)},  # type: ignore[dict-item]
    )

    assert given == SamplingParams(
        top_k=3, temperature=0.5, stop_token_ids=(0, 1), logit_bias={7: 2.0}
    )
    kept = (given.top_k, given.temperature, *given.stop_token_ids, *given.logit_bias)
    assert {type(value) for value in kept} == {int, float}


def test_json_names_the_ids_of_biases_by_their_digits() -> None:
    given = SamplingParams.from_dict(json.loads('{"logit_bias": {"3": 1, "40": -100}}'))

    assert given.logit_bias == {3: 1.0, 40: -100.0}


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


def test_biases_are_kept_as_a_value_that_nobody_changes() -> None:
    given = {5: 1, 3: -math.inf}

    params = SamplingParams(logit_bias=given)
    given[5] = 7

    assert params.logit_bias == {3: -math.inf, 5: 1.0}
    assert params == SamplingParams(logit_bias={3: -math.inf, 5: 1.0})
    assert hash(params) == hash(replace(params))
    assert pickle.loads(pickle.dumps(params)) == params


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


def test_the_documentation_has_the_table_as_it_is() -> None:
    """`make docs` writes it."""
    text = (Path(__file__).parents[1] / "docs/sampling.md").read_text(encoding="utf-8")

    assert with_table(text) == text


def test_every_field_is_a_row_of_the_table() -> None:
    hints = get_type_hints(SamplingParams, include_extras=True)

    assert list(PARAMETERS) == [field.name for field in fields(SamplingParams)]
    assert all(isinstance(hint.__metadata__[0], Param) for hint in hints.values())


def test_defaults_fulfil_their_own_rules() -> None:
    for field in fields(SamplingParams):
        assert PARAMETERS[field.name].rule.read(field.name, field.default) == field.default


def test_parameters_by_name_are_those_of_the_class() -> None:
    values = {"temperature": 0, "stop": ["a"], "seed": 3}

    assert SamplingParams.from_dict(values) == SamplingParams(temperature=0, stop=("a",), seed=3)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("best_of", "'best_of' is not a sampling parameter$"),
        ("temprature", "'temprature' is not a sampling parameter; did you mean temperature?"),
        (3, "3 is not a sampling parameter"),
    ],
)
def test_an_unknown_name_is_refused_by_name(name: object, fault: str) -> None:
    with pytest.raises(RequestRejected, match=fault):
        SamplingParams.from_dict({name: 1})  # type: ignore[dict-item]  # on purpose


def test_a_number_too_long_to_print_is_refused() -> None:
    with pytest.raises(RequestRejected, match="seed is a very large number; it must be below"):
        SamplingParams(seed=10**5_000)


def test_the_command_line_has_an_option_for_every_parameter_that_says_so() -> None:
    @click.command()
    @sampling_options
    def command(sampling: SamplingOptions) -> None:
        raise AssertionError(sampling)

    offered = [name for name, param in PARAMETERS.items() if param.has_option]
    assert [parameter.name for parameter in command.params] == offered


def test_options_change_only_what_was_said() -> None:
    said: list[SamplingOptions] = []

    @click.command()
    @sampling_options
    def command(sampling: SamplingOptions) -> None:
        said.append(sampling)

    words = "--top-k 3 --logit-bias 5=1.5 --logit-bias 6=-inf --stop a --stop b"
    flags = "--no-skip-special-tokens --ignore-eos --stop-token-ids 7"
    command.main([*words.split(), *flags.split()], standalone_mode=False)

    assert said[0].params(SamplingParams(top_p=0.5)) == SamplingParams(
        top_k=3,
        logit_bias={5: 1.5, 6: -math.inf},
        top_p=0.5,
        stop=("a", "b"),
        skip_special_tokens=False,
        ignore_eos=True,
        stop_token_ids=(7,),
    )
