"""Values for sampling parameters, drawn from the rules of their table: good ones and bad ones."""

from typing import Any

from hypothesis import strategies as st

from stepahead.messages.param_rules import Biases, Flag, Number, Rule, Texts, TokenIds, Whole
from stepahead.messages.params import PARAMETERS
from stepahead.messages.structure import Structure

VOCAB = 512  # of the toy tokenizer

_ODD_NUMBERS: list[Any] = [True, -1, 0, 2**63, 10**400, 0.5, 1e300]
_ODD_NUMBERS += [float("nan"), float("inf"), float("-inf"), None]
_ODD_TEXTS: list[Any] = ["", "x", "\udc80", b"x", ("",), ("a", 1)]
_ODD_IDS: list[Any] = [(), (1,), (-1,), [VOCAB], [None], object()]
_ODD_BIASES: list[Any] = [{}, {1: None}, {"a": 1}, {-1: 1}, {VOCAB: 1.0}, {3: float("nan")}]
_ODD = st.sampled_from([*_ODD_NUMBERS, *_ODD_TEXTS, *_ODD_IDS, *_ODD_BIASES])
_IDS = st.integers(0, VOCAB - 1)
_STRUCTURES: list[Any] = [{"regex": "[a-z]{1,9}"}, {"choice": ["yes", "no"]}, {"json_object": True}]
_STRUCTURES += [{"json_schema": {"type": "integer"}}, {"grammar": 'start: "a" start | "b"'}]


def good(name: str, rule: Rule) -> st.SearchStrategy[Any]:
    """What the rule allows, mostly of a size that makes a difference."""
    if name == "logits_processors":
        return st.just(())  # the engine has none
    match rule:
        case Whole():
            most = min(rule.most, rule.least + 12)
            values = st.integers(rule.least, most)
            return st.none() | values if rule.or_none else values
        case Number():
            most_number = min(rule.most, 3.0)
            return st.floats(rule.least, most_number, exclude_min=rule.is_above)
        case Flag():
            return st.booleans()
        case Texts():
            return st.lists(st.text(min_size=1, max_size=3), max_size=4).map(tuple)
        case TokenIds():
            ids = st.lists(_IDS, min_size=int(rule.or_none), max_size=40).map(tuple)
            return st.none() | ids if rule.or_none else ids
        case Biases():
            bias = st.floats(rule.least, rule.most) | st.just(float("-inf"))
            return st.dictionaries(_IDS, bias, max_size=20)
        case Structure():
            return st.none() | st.sampled_from(_STRUCTURES)
    raise TypeError(f"{name}: no values are drawn for {rule}")


def parameters() -> st.SearchStrategy[dict[str, Any]]:
    """A few parameters by name; now and then one of them has an odd value."""
    each = [st.tuples(st.just(name), good(name, param.rule)) for name, param in PARAMETERS.items()]
    odd = st.tuples(st.sampled_from([*PARAMETERS, "no_such_field"]), _ODD)
    return st.lists(st.one_of(*each, odd), max_size=6).map(dict)
