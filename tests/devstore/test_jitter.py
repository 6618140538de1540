from __future__ import annotations

from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.devstore.jitter import Jitter


def draws(deviation: float, seed: int = 0, number: int = 20_000) -> list[float]:
    jitter = Jitter(deviation, seed)
    return [jitter.draw(0.05) for _ in range(number)]


@pytest.mark.parametrize("deviation", [0.1, 0.3, 1.0])
def test_mean_and_deviation_are_as_asked(deviation: float) -> None:
    seconds = draws(deviation)
    assert fmean(seconds) == pytest.approx(0.05, rel=0.02)
    assert stdev(seconds) == pytest.approx(0.05 * deviation, rel=0.05)
    assert min(seconds) > 0


@given(st.floats(0, 100), st.integers())
def test_without_jitter_each_latency_is_the_mean(mean: float, seed: int) -> None:
    assert Jitter(0.0, seed).draw(mean) == mean


def test_latencies_follow_the_seed() -> None:
    assert draws(0.3, seed=1, number=9) == draws(0.3, seed=1, number=9)
    assert draws(0.3, seed=1, number=9) != draws(0.3, seed=2, number=9)
