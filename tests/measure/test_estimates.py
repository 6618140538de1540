from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.measure.estimates import Estimate, job_rate, measured_once, quantile
from streamrec.measure.figures import Job, Sample
from tests.measure.samples import figures


def job(rates: list[float]) -> Job:
    found = figures().job
    assert found
    samples = [
        Sample(at=i + 1.0, seconds=1.0, bytes=int(rate), records=1) for i, rate in enumerate(rates)
    ]
    changes = {"samples": samples, "seconds": float(len(rates)), "bytes": int(sum(rates))}
    return found.model_copy(update=changes)


@given(st.floats(0, 1e12))
def test_what_was_measured_once_is_true_to_a_twentieth(value: float) -> None:
    estimate = measured_once(value)
    assert estimate.value == value
    assert estimate.low == pytest.approx(0.95 * value)
    assert estimate.high == pytest.approx(1.05 * value)


def test_the_interval_of_a_job_holds_the_true_rate() -> None:
    random = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        estimate = job_rate(job(list(random.normal(1e6, 3e5, 40))), "bytes")
        held += estimate.low <= 1e6 <= estimate.high
    assert 180 <= held < 200


def test_a_steady_job_is_not_trusted_more_than_two_runs_agree() -> None:
    estimate = job_rate(job([1e6] * 40), "bytes")
    assert estimate.low == pytest.approx(0.975e6)
    assert estimate.high == pytest.approx(1.025e6)


def test_a_job_of_few_samples_was_measured_once() -> None:
    assert job_rate(job([1e6, 2e6]), "bytes") == measured_once(1.5e6)
    stopped = job([]).model_copy(update={"seconds": 0.0})
    assert job_rate(stopped, "bytes") == measured_once(0.0)


@pytest.mark.parametrize("part", [0.5, 0.9, 0.99])
def test_the_interval_of_a_quantile_holds_the_true_one(part: float) -> None:
    random = np.random.default_rng(2)
    true = -math.log(1 - part)
    held = 0
    for _ in range(200):
        times = sorted(random.exponential(size=600).tolist())
        estimate = quantile(times, part, float(np.quantile(times, part)))
        held += estimate.low <= true <= estimate.high
    assert held >= 184


def test_few_times_say_nothing_about_a_high_quantile() -> None:
    assert quantile([0.1, 0.2, 0.3], 0.999, 0.3).high == math.inf
    assert quantile([], 0.5, 0.1).low == 0.0


def test_intervals_overlap_or_not() -> None:
    one = Estimate(10, 9, 11)
    assert one.overlaps(Estimate(12, 11, 13))
    assert Estimate(12, 11, 13).overlaps(one)
    assert not one.overlaps(Estimate(13, 12, 14))
    assert not Estimate(13, 12, 14).overlaps(one)
