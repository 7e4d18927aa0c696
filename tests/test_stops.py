"""Stop strings: found however the text is cut, and nothing else is lost or delayed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepahead import SamplingParams
from stepahead.actors.text.output import OutputText
from stepahead.actors.text.stops import StopMatcher
from stepahead.actors.text.toy import ToyTokenizer

bounded = settings(max_examples=200, derandomize=True, deadline=None)


def shown(stops: list[str], pieces: list[str], *, include: bool = False) -> list[str]:
    """What each piece lets through, and then what is flushed."""
    matcher = StopMatcher(stops, include_in_output=include)
    return [*[matcher.push(piece) for piece in pieces], matcher.flush()]


def naive(stops: list[str], text: str, include: bool) -> tuple[str, str | None]:
    """The rule itself: the first end of a stop string, and there the longest one."""
    for end in range(1, len(text) + 1):
        ending_here = [stop for stop in stops if text[:end].endswith(stop)]
        if ending_here:
            stop = max(ending_here, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@bounded
@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
    pieces=st.lists(st.text("abc", max_size=6), max_size=10),
    include=st.booleans(),
)
def test_finds_what_a_search_of_the_whole_text_finds(
    stops: list[str], pieces: list[str], include: bool
) -> None:
    matcher = StopMatcher(stops, include_in_output=include)

    text = "".join([matcher.push(piece) for piece in pieces]) + matcher.flush()

    assert (text, matcher.matched) == naive(stops, "".join(pieces), include)


@bounded
@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
    pieces=st.lists(st.text("abc", max_size=6), max_size=10),
)
def test_holds_back_no_more_than_what_may_begin_a_stop_string(
    stops: list[str], pieces: list[str]
) -> None:
    matcher = StopMatcher(stops)
    arrived = text = ""
    for piece in pieces:
        arrived += piece
        text += matcher.push(piece)
        if matcher.matched is not None:
            return
        held = arrived[len(text) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_pieces_of_the_stop_string_are_never_shown() -> None:
    """Field case 014."""
    assert shown(["CDEF"], ["AB", "CD", "EF"]) == ["AB", "", "", ""]


def test_text_before_the_match_in_the_same_piece_is_shown() -> None:
    """Field case 017."""
    assert shown(["\n"], ["sky on Mars", "?\n"]) == ["sky on Mars", "?", ""]


def test_a_beginning_that_is_never_completed_is_flushed() -> None:
    """Field case 019."""
    assert shown([" TRE\n"], ["UNO", " DUE", " TRE"]) == ["UNO", " DUE", "", " TRE"]


def test_a_match_may_span_many_pieces() -> None:
    """Field case 020."""
    assert shown(["O P Q"], list("NO P QR")) == ["N", "", "", "", "", "", "", ""]


def test_ordinary_text_is_not_delayed_by_a_long_stop_string() -> None:
    """Field case 010."""
    pieces = ["one", " two", " three"]

    assert shown(["x" * 30], pieces) == [*pieces, ""]


def test_the_stop_string_can_be_kept_and_is_named() -> None:
    """Field case 026."""
    matcher = StopMatcher(["never", "END"], include_in_output=True)

    assert matcher.push("the EN") == "the "
    assert matcher.push("D and more") == "END"
    assert matcher.matched == "END"


@pytest.mark.parametrize("pieces", [["xabcdy"], ["xab", "cdy"], ["x", "a", "b", "c", "d"]])
def test_the_stop_string_that_is_complete_first_wins(pieces: list[str]) -> None:
    assert "".join(shown(["abcd", "bc"], pieces)) == "xa"


def test_of_two_that_end_together_the_longer_wins() -> None:
    matcher = StopMatcher(["c", "abc"])

    assert matcher.push("xabc") == "x"
    assert matcher.matched == "abc"


def test_nothing_is_shown_after_a_match() -> None:
    assert shown(["."], ["a.", "b"]) == ["a", "", ""]


def output_of(text: str, **params: object) -> tuple[list[str], str, str | None]:
    """Drive an OutputText over the toy's ids: pieces, what finishing gives, the match."""
    output = OutputText(ToyTokenizer(), SamplingParams(**params))  # type: ignore[arg-type]
    pieces = [output.push(token_id) for token_id in ToyTokenizer().encode(text)]
    return pieces, output.finish(), output.matched


def test_an_output_without_stop_strings_is_its_decoded_text() -> None:
    assert output_of("aé") == (["a", "", "é"], "", None)


def test_an_output_ends_before_its_stop_string() -> None:
    assert output_of("ab--c", stop="--") == (["a", "b", "", "", ""], "", "--")


def test_finishing_shows_everything_held_back() -> None:
    assert output_of("ab-", stop="--") == (["a", "b", ""], "-", None)


def test_an_unfinished_character_may_complete_a_stop_string_at_the_end() -> None:
    output = OutputText(ToyTokenizer(), SamplingParams(stop=("\ufffd",)))

    assert (output.push(0x61), output.push(0xE2), output.finish()) == ("a", "", "")
    assert output.matched == "\ufffd"


def test_stop_strings_count_only_after_the_least_number_of_tokens() -> None:
    """The text of the first `min_tokens` tokens is shown and takes no part in a match."""
    assert output_of("---", stop="--", min_tokens=2, max_tokens=9) == (["-", "-", ""], "-", None)
    assert output_of("----", stop="--", min_tokens=2, max_tokens=9) == (
        ["-", "-", "", ""],
        "",
        "--",
    )


def test_a_skipped_special_token_does_not_cut_real_text() -> None:
    """Field case 016."""
    assert output_of("abc<end>", stop="zzz") == (["a", "b", "c", ""], "", None)
