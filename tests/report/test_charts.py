from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamrec.feeder.page.samples import MOST
from streamrec.report.charts import HEIGHT, WIDTH, Square, arrange, chart_of, histogram_of

VALUES = st.lists(st.none() | st.floats(0, 1e12), max_size=MOST)


@example([5e-324])
@given(VALUES)
def test_every_value_is_a_point_in_the_box(values: list[float | None]) -> None:
    chart = chart_of(values)
    points = [(float(x), float(y)) for x, y in re.findall(r"([\d.]+),([\d.]+)", chart.line)]
    there = [index for index, value in enumerate(values) if value is not None]
    assert len(points) == len(there)
    for (x, y), index in zip(points, there, strict=True):
        assert abs(x - chart.places[index]) < 0.1
        assert 0 <= x <= WIDTH
        value = values[index]
        assert value is not None
        assert abs(y - HEIGHT * (1 - value / chart.top)) < 0.1
        assert 0 <= y <= HEIGHT


@given(st.floats(1e-6, 1e12))
def test_the_scale_is_round_and_not_much_above(value: float) -> None:
    top = chart_of([value]).top
    assert value <= top <= 2.01 * value
    assert len(f"{top:.6e}".partition("e")[0].rstrip("0").replace(".", "")) <= 2


def test_a_gap_divides_the_line() -> None:
    chart = chart_of([1.0, 2.0, None, 2.0])
    assert chart.line.count("M") == 2
    assert chart.area.count("Z") == 2
    assert chart.places[-1] == WIDTH


def test_nothing_is_no_line() -> None:
    assert (chart_of([]).line, chart_of([None]).line, chart_of([None]).top) == ("", "", 1.0)


def test_samples_may_be_further_apart() -> None:
    assert chart_of([1.0, 2.0, 3.0], step=WIDTH / 3).places == [WIDTH / 3, 2 * WIDTH / 3, WIDTH]


TIMES = st.lists(st.floats(0, 1e4), min_size=1, max_size=50)


@given(TIMES)
@example([1.75])
def test_every_time_is_in_a_column_and_every_mark_on_the_axis(times: list[float]) -> None:
    histogram = histogram_of(times, {"least": min(times), "most": max(times)})
    counts = [int(column.detail.partition(": ")[2].split()[0]) for column in histogram.columns]
    assert sum(counts) == len(times)
    assert max(column.part for column in histogram.columns) == 1
    least, most = histogram.marks
    assert 0 <= least.place <= most.place <= 1
    assert least.place <= histogram.columns[0].left + histogram.columns[0].width
    assert most.place >= histogram.columns[-1].left
    assert all(0 <= tick.place <= 1 for tick in histogram.ticks)


def test_the_axis_has_round_times() -> None:
    ticks = histogram_of([0.021, 0.4], {}).ticks
    assert [tick.text for tick in ticks] == ["20 ms", "50 ms", "100 ms", "200 ms"]
    assert len(histogram_of([1e-5, 100], {}).ticks) == 8


def test_marks_have_names() -> None:
    (mark,) = histogram_of([0.01, 1.0], {"p50": 0.1}).marks
    assert mark.text == "p50 100 ms"
    assert mark.place == pytest.approx(0.5)


def test_no_times_are_no_columns() -> None:
    assert histogram_of([], {}).columns == []


def test_empty_squares_have_a_legend() -> None:
    squares = {(1 << 20, 1): Square("1", "h0", ""), (4 << 20, 2): Square("2", "h0", "")}
    assert arrange(squares).gap.startswith("· was not measured")
    assert arrange(dict([*squares.items()][:1])).gap == ""
