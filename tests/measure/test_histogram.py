from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamrec.measure.histogram import histogram_of

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
