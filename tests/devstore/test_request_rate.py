from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.devstore.request_rate import BURST_SECONDS, RequestRate


def admitted(rate: float, arrivals: list[float]) -> int:
    times = iter(arrivals)
    limit = RequestRate(rate, lambda: next(times))
    return sum(limit.admit() for _ in arrivals)


@given(st.floats(1, 5000), st.floats(1.0, 3.0))
def test_what_is_admitted_is_the_rate(rate: float, excess: float) -> None:
    arrivals = [n / (rate * excess) for n in range(int(10 * rate * excess))]
    most = max(2.0, rate * BURST_SECONDS)
    assert 10 * rate - 2 <= admitted(rate, arrivals) <= 10 * rate + most


def test_a_burst_is_a_tenth_of_a_second() -> None:
    assert admitted(80.0, [5.0] * 50) == 8
    assert admitted(80.0, [5.0] * 50 + [5.125] * 50) == 16
    assert admitted(80.0, [5.0] * 50 + [99.0] * 50) == 16


@pytest.mark.parametrize("rate", [0.1, 1.0, 5.0])
def test_a_slow_store_admits_two_at_once(rate: float) -> None:
    assert admitted(rate, [0.0] * 5) == 2
