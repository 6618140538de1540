from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.flow.timings import (
    BOUNDS,
    Histogram,
    Timings,
    add_up,
    first_bytes_of,
    growth,
    quantile,
)

SECONDS = st.floats(0, 100)


@given(st.lists(SECONDS))
def test_buckets_are_those_of_numpy(times: list[float]) -> None:
    histogram = Histogram()
    for seconds in times:
        histogram.observe(seconds)
    expected = np.bincount(np.searchsorted(BOUNDS, times), minlength=len(BOUNDS) + 1)
    assert histogram.to_dict()["counts"] == expected.tolist()
    assert histogram.to_dict()["sum"] == pytest.approx(sum(times))


@given(st.lists(st.lists(st.tuples(SECONDS, SECONDS), max_size=4), max_size=4))
def test_timings_add_up(parts: list[list[tuple[float, float]]]) -> None:
    whole, trees = Timings(), []
    for part in parts:
        timings = Timings()
        for first, duration in part:
            timings.observe("s3", "read", first, duration)
            whole.observe("s3", "read", first, duration)
        trees.append(json.loads(json.dumps(timings.to_dict())))
    total = add_up(trees)
    assert total.keys() == whole.to_dict().keys()
    if total:
        for name, found in whole.to_dict()["s3"]["read"].items():
            assert total["s3"]["read"][name]["counts"] == found["counts"]
            assert total["s3"]["read"][name]["sum"] == pytest.approx(found["sum"])


def test_adding_changes_no_part() -> None:
    one = {"a": [1, 2], "b": {"c": 1}}
    total = add_up((one, {"a": [1, 1], "b": {"d": 2}}, {}))
    assert total == {"a": [2, 3], "b": {"c": 1, "d": 2}}
    total["a"][0] = total["b"]["c"] = 9
    assert one == {"a": [1, 2], "b": {"c": 1}}


@given(st.lists(SECONDS, min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_in_the_bucket_of_the_true_one(times: list[float], part: float) -> None:
    histogram = Histogram()
    for seconds in times:
        histogram.observe(seconds)
    found = quantile(histogram.to_dict()["counts"], part)
    true = float(np.quantile(times, part, method="inverted_cdf"))
    bounds = (0.0, *BOUNDS, BOUNDS[-1])
    bucket = int(np.searchsorted(BOUNDS, true))
    assert found is not None
    assert bounds[bucket] <= found <= bounds[bucket + 1]


def test_there_is_no_quantile_of_nothing() -> None:
    assert quantile([0] * (len(BOUNDS) + 1), 0.5) is None
    assert quantile([-1] * (len(BOUNDS) + 1), 0.5) is None


def test_what_has_grown_has_grown_by_so_much() -> None:
    before = {"same": 3, "more": 3, "less": 3}
    assert growth(before, {"same": 3, "more": 5, "less": 2, "first": 4}) == {"more": 2, "first": 4}


def test_first_bytes_are_those_of_the_reads_of_all_stores() -> None:
    timings = Timings()
    for store, operation in (("s3", "read"), ("gcs", "read"), ("s3", "list")):
        timings.observe(store, operation, 0.02, 1.0)
    counts = first_bytes_of(timings.to_dict())
    assert (sum(counts), quantile(counts, 1.0)) == (2, 0.025)
    assert first_bytes_of({}) == []
