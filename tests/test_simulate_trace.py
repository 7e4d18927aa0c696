"""Files that a simulation reads: traces and measured step times, and what is wrong with them."""

from pathlib import Path

import pytest

from stepahead import ConfigError
from stepahead.actors.simulation.trace import TraceRequest, read_trace
from stepahead.gpu.cards import CARDS, ModelSize, blocks_beside, step_time
from stepahead.gpu.step_points import StepPoints, read_step_points

HEADER = "arrival,prompt_tokens,output_tokens,prefix_group,prefix_tokens,priority\n"


def file(folder: Path, text: str | bytes) -> Path:
    path = folder / "trace"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_csv_trace_is_read_in_the_order_of_arrival(tmp_path: Path) -> None:
    path = file(tmp_path, HEADER + "2.5, 10, 4,,,\n\n1,20,5,007,8,-3\n")

    expected = [TraceRequest(1.0, 20, 5, "007", 8, -3), TraceRequest(2.5, 10, 4)]
    assert read_trace(path) == expected


def test_columns_may_come_in_any_order_and_optional_ones_be_left_out(tmp_path: Path) -> None:
    path = file(tmp_path, "output_tokens,arrival,prompt_tokens\r\n4,0.5,10\r\n")

    assert read_trace(path) == [TraceRequest(0.5, 10, 4)]


def test_json_lines_hold_the_same(tmp_path: Path) -> None:
    text = (
        '{"arrival": 1, "prompt_tokens": 20, "output_tokens": 5, "priority": 2}\n'
        "\n"
        '{"arrival": 0.5, "prompt_tokens": 9, "output_tokens": 1, "prefix_group": "a",'
        ' "prefix_tokens": 3, "priority": null}\n'
    )

    expected = [TraceRequest(0.5, 9, 1, "a", 3), TraceRequest(1.0, 20, 5, priority=2)]
    assert read_trace(file(tmp_path, text)) == expected


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("x,10,4,,,", "arrival is 'x'"),
        ("-1,10,4,,,", "arrival is -1"),
        ("nan,10,4,,,", "arrival is nan"),
        ("inf,10,4,,,", "arrival is inf"),
        (",10,4,,,", "arrival is empty"),
        ("1,0,4,,,", "prompt_tokens is 0"),
        ("1,1.5,4,,,", "prompt_tokens is 1.5"),
        ("1,10,many,,,", "output_tokens is 'many'"),
        ("1,10,9999999999,,,", "output_tokens is 9999999999"),
        ("1,10,4,a,,", "prefix_tokens is empty"),
        ("1,10,4,,3,", "prefix_group is empty"),
        ("1,10,4,a,11,", "prefix_tokens is 11; it must be a whole number from 0 to 10"),
        ("1,10,4,,,high", "priority is 'high'"),
        ("1,10,4,,", "5 fields where the header names 6"),
    ],
)
def test_a_bad_line_of_csv_is_named_with_its_field(
    tmp_path: Path, row: str, complaint: str
) -> None:
    path = file(tmp_path, f"{HEADER}1,10,4,,,\n{row}\n")

    with pytest.raises(ConfigError, match=r"line 3: ") as caught:
        read_trace(path)

    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "not a JSON object"),
        ("[1, 2, 3]", "not a JSON object"),
        ('{"arrival": 1, "prompt_tokens": 2}', "output_tokens is missing"),
        ('{"arrival": 1, "prompt_tokens": 2, "output_tokens": null}', "output_tokens is empty"),
        ('{"arrival": 1, "prompt_tokens": true, "output_tokens": 3}', "prompt_tokens is True"),
        ('{"arrival": "1", "prompt_tokens": 2, "output_tokens": 3}', "arrival is '1'"),
        ('{"arrival": 1, "prompt": 2, "output_tokens": 3}', "no field 'prompt'"),
        (
            '{"arrival": 1, "prompt_tokens": 2, "output_tokens": 3, "prefix_group": [1],'
            ' "prefix_tokens": 1}',
            "prefix_group is [1]",
        ),
        ('{"arrival": 1' + "0" * 400 + ', "prompt_tokens": 2, "output_tokens": 3}', "arrival is 1"),
    ],
)
def test_a_bad_line_of_json_is_named_with_its_field(
    tmp_path: Path, line: str, complaint: str
) -> None:
    good = '{"arrival": 1, "prompt_tokens": 2, "output_tokens": 3}'

    with pytest.raises(ConfigError, match=r"line 2: ") as caught:
        read_trace(file(tmp_path, f"{good}\n{line}\n"))

    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "holds no requests"),
        (HEADER, "holds no requests"),
        ("1,10,4\n", "line 1: there is no field '1'"),
        ("arrival,prompt_tokens\n1,2\n", "line 1: the field output_tokens is missing"),
        ("arrival,arrival,prompt_tokens,output_tokens\n", "the field arrival is there twice"),
        (b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_a_file_that_is_no_trace_is_a_mistake(
    tmp_path: Path, text: str | bytes, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read_trace(file(tmp_path, text))


def test_a_file_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file"):
        read_trace(tmp_path / "nowhere")


def test_step_times_lie_on_lines_between_the_points() -> None:
    points = StepPoints([(1, 0, 0.01), (1, 1_000, 0.02), (101, 0, 0.11)])

    assert points.seconds(1, 0) == pytest.approx(0.01)
    assert points.seconds(1, 500) == pytest.approx(0.015)
    assert points.seconds(51, 0) == pytest.approx(0.06)
    assert points.seconds(51, 1_000) == pytest.approx(0.065)


def test_beyond_the_points_the_last_slope_goes_on_but_never_downwards() -> None:
    points = StepPoints([(10, 0, 0.01), (20, 0, 0.02), (20, 100, 0.03), (20, 200, 0.025)])

    assert points.seconds(1, 0) == pytest.approx(0.01)
    assert points.seconds(40, 0) == pytest.approx(0.04)
    assert points.seconds(20, 400) == pytest.approx(0.025)


def test_a_single_point_holds_everywhere() -> None:
    assert StepPoints([(8, 100, 0.01)]).seconds(2_000, 0) == 0.01


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is not JSON"),
        ("[]", "must hold a list"),
        ('{"a": 1}', "must hold a list"),
        ("[[1, 2]]", "point 1: .* is not"),
        ("[[1, 0, 0.1], [0, 0, 0.1]]", "point 2: tokens is 0"),
        ('[[1, "x", 0.1]]', "point 1: kv tokens is 'x'"),
        ("[[1, 0, 0]]", "point 1: seconds is 0"),
        ("[[1, 0, NaN]]", "point 1: seconds is nan"),
        ("[[1, 0, 1], [1, 0, 2]]", "point 2: 1 tokens with 0 tokens of KV were given before"),
    ],
)
def test_bad_step_times_are_named_with_their_point(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read_step_points(file(tmp_path, text))


def test_cards_are_ordered_as_their_data_sheets_are() -> None:
    decode = [step_time(CARDS[name], ModelSize()).seconds(1, 0) for name in ("h200", "h100")]
    prefill = [step_time(CARDS[name], ModelSize()).seconds(8_192, 0) for name in ("h100", "a100")]

    assert decode[0] < decode[1]
    assert prefill[0] < prefill[1]
    assert decode[1] == pytest.approx(5.2e-3, rel=0.05)  # 15 GB at 3 TB/s, and 0.2 ms


def test_larger_models_leave_fewer_blocks_and_too_large_ones_are_a_mistake() -> None:
    small, large = (blocks_beside(CARDS["h100"], ModelSize(size), 16) for size in (8, 30))

    assert small > 2 * large
    with pytest.raises(ConfigError, match="takes 140 GB, and h100 has 80 GB"):
        blocks_beside(CARDS["h100"], ModelSize(70), 16)
