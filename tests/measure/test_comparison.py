from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.measure.comparison import (
    ComparisonView,
    Estimate,
    bounds_of,
    compare,
    estimate_once,
    job_rate,
    plain,
    quantile,
)
from streamrec.measure.figures import Job, Sample
from streamrec.report.verdict import on_path
from tests.documents import HOSTILE
from tests.measure.samples import bare, figures, hostile, improved

if TYPE_CHECKING:
    from streamrec.measure.figures import Cell, Figures


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
    estimate = estimate_once(value)
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
    assert job_rate(job([1e6, 2e6]), "bytes") == estimate_once(1.5e6)
    stopped = job([]).model_copy(update={"seconds": 0.0})
    assert job_rate(stopped, "bytes") == estimate_once(0.0)


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


def judged(found: ComparisonView) -> dict[str, str]:
    return {ratio.name: ratio.judgement for ratio in found.ratios}


def slower(figures: Figures, part: float) -> Figures:
    """Return figures whose rates are lower, and whose times are longer."""
    assert figures.job
    assert figures.sweep
    assert figures.listing
    samples = [
        sample.model_copy(update={"bytes": int(part * sample.bytes)})
        for sample in figures.job.samples
    ]
    changes = {"samples": samples, "bytes": int(part * figures.job.bytes)}
    cells = [_slower(cell, part) for cell in figures.sweep.cells]
    return figures.model_copy(
        update={
            "job": figures.job.model_copy(update=changes),
            "sweep": figures.sweep.model_copy(update={"cells": cells}),
            "listing": figures.listing.model_copy(update={"seconds": 1.0}),
        }
    )


def _slower(cell: Cell, part: float) -> Cell:
    return cell.model_copy(update={"seconds": cell.seconds / part})


def test_a_benchmark_is_like_itself() -> None:
    found = compare(figures(), figures())
    assert found.judgement == "noise"
    assert found.headline == "The job is as fast in B as in A, but for noise."
    assert found.differences == []
    assert {ratio.ratio for ratio in found.ratios} == {"x 1.00"}
    assert set(judged(found).values()) == {"noise"}


def test_another_run_of_the_same_store_is_noise() -> None:
    assert set(judged(compare(figures(1), figures(7))).values()) == {"noise"}


def test_a_gain_is_told_from_noise() -> None:
    found = compare(figures(), improved(), ("before", "after"))
    assert found.headline == "The job is faster in after: 467.4 MB/s became 1.1 GB/s."
    better = {name for name, judgement in judged(found).items() if judgement == "better"}
    assert better == {"job", "job, records"}
    assert [advice.headline for advice in found.verdicts] == [
        "The latency of the store holds this job back.",
        "The link holds this job back.",
    ]


def test_what_differs_is_named_with_both_values() -> None:
    found = compare(figures(), improved())
    assert found.differences == [
        ("max_concurrency", "16", "32"),
        ("compression", "none", "not given"),
        ("memory_budget", "not given", "1GiB"),
    ]
    machine = figures().machine.model_copy(update={"cores": 8})
    assert compare(figures(), figures(machine=machine)).differences == [("cores", "16", "8")]


def test_bytes_that_differ_are_shown_in_their_unit() -> None:
    target = figures().target
    one, other = (
        figures(target=target.model_copy(update={"settings": {"memory_budget": budget}}))
        for budget in (64 << 20, "auto")
    )
    assert compare(one, other).differences == [("memory_budget", "64.0 MiB", "auto")]
    smaller = figures().machine.model_copy(update={"memory_bytes": 2 << 30})
    limits = figures().limits.model_copy(update={"bytes": 10**9})
    assert compare(figures(), figures(machine=smaller, limits=limits)).differences == [
        ("memory", "64.0 GiB", "2.0 GiB"),
        ("limit of bytes", "32.0 GB", "1.0 GB"),
    ]


def test_a_loss_is_one_for_rates_and_for_times() -> None:
    found = compare(figures(), slower(figures(), 0.5))
    assert found.judgement == "worse"
    assert found.headline.startswith("The job is slower in B")
    losses = {name for name, judgement in judged(found).items() if judgement == "worse"}
    assert losses == {"job", "best of the sweep", "listing"}


def uneven(times: float) -> Figures:
    """Return figures of a job whose rate varies much."""
    return figures(job=job([times * rate for rate in (1e6, 1e6, 40e6, 40e6) * 5]))


def test_a_large_difference_within_the_noise_is_not_called_none() -> None:
    found = compare(uneven(1.0), uneven(1.8), ("before", "after"))
    main = found.ratios[0]
    assert (found.judgement, main.ratio, main.interval) == ("noise", "x 1.80", "0.30 to 10.93")
    assert found.headline == (
        "The job is 1.80 times as fast in after (20.5 MB/s became 36.9 MB/s), but too little was "
        "measured to be sure (the interval of the ratio is 0.30 to 10.93): measure both again with "
        "more --seconds, and with --set epochs=3 if the data ends before."
    )
    swept = compare(slower(figures(), 0.92), figures()).ratios
    assert next(one for one in swept if one.name == "best of the sweep").judgement == "noise"


@given(
    *[st.tuples(st.floats(1, 1e9), st.floats(0, 1), st.floats(0, 1)) for _ in range(2)],
)
def test_the_interval_of_a_ratio_holds_1_where_intervals_overlap(
    one: tuple[float, float, float], other: tuple[float, float, float]
) -> None:
    before, after = (
        Estimate(value, value * (1 - down), value * (1 + up)) for value, down, up in (one, other)
    )
    low, high = bounds_of(before, after)
    assert low is not None
    assert before.overlaps(after) == (low <= 1 and (high is None or high >= 1))


def test_a_small_loss_is_noise() -> None:
    assert judged(compare(figures(), slower(figures(), 0.97)))["job"] == "noise"


def test_sweeps_are_compared_point_by_point() -> None:
    found = compare(figures(), slower(figures(), 0.5)).grid
    assert found
    texts = {square.text for _, squares in found.rows for square in squares if square}
    assert texts == {"▼ 0.50"}
    assert compare(figures(), figures(sweep=None)).grid is None


def test_a_stage_that_neither_waited_for_is_not_shown() -> None:
    found = figures()
    assert found.job
    job = found.job.model_copy(update={"waits": {"scan": 1.0, "filter": 0.0, "decode": 0.0}})
    other = job.model_copy(update={"waits": {"scan": 3.0, "filter": 0.0, "decode": 1.0}})
    waits = compare(figures(job=job), figures(job=other)).waits
    assert waits == [("scan", 1.0, 0.75), ("decode", 0.0, 0.25)]


def test_waits_are_parts_of_each_job_s_time() -> None:
    waits = {name: (one, other) for name, one, other in compare(figures(), improved()).waits}
    assert list(waits) == ["first_byte", "body", "scan", "order", "queue", "decode", "client"]
    assert waits["scan"][1] == 0
    assert round(sum(one for one, _ in waits.values()), 9) == 1


def test_little_in_common_is_said() -> None:
    found = compare(figures(), bare())
    assert found.headline == "The two have no rate in common."
    assert (found.ratios, found.grid, found.waits) == ([], None, [])
    assert compare(figures(job=None), figures()).headline.startswith("The best of the sweep")


def test_names_and_facts_hold_no_control_characters() -> None:
    found = compare(figures(), hostile(HOSTILE), (HOSTILE, "b"))
    assert "\x1b" not in repr(found)
    assert "\x1b".encode("unicode_escape").decode() not in repr(found)


def test_as_json_it_has_the_figures_and_not_their_words() -> None:
    found = json.loads(json.dumps(plain(compare(figures(), improved(), ("before", "after")))))
    assert (found["version"], found["names"], found["judgement"]) == (
        1,
        ["before", "after"],
        "better",
    )
    assert found["bottlenecks"] == ["store latency", improved().verdict.bottleneck]  # type: ignore[union-attr]
    by_name = {one["name"]: one for one in found["figures"]}
    job = by_name["job"]
    assert job["after"] > job["before"] > 1e6
    assert (job["more_is_faster"], job["judgement"]) == (True, "better")
    assert by_name["first batch"]["more_is_faster"] is False
    assert by_name["first byte, p99.9"]["ratio_high"] is None, "too few requests for an upper end"
    assert job["ratio_low"] > 1
    first, *_ = found["sweep"]
    assert first.keys() == {"range_bytes", "concurrency", "before", "after", "judgement"}
    stages = [one["stage"] for one in found["waits"]]
    assert stages == [*on_path(dict.fromkeys(stages, 1.0))]


def test_as_json_what_was_not_measured_is_empty() -> None:
    bare = figures(job=None, sweep=None, first_byte=None, listing=None, verdict=None)
    found = plain(compare(bare, bare))
    assert found["sweep"] == found["waits"] == found["differences"] == []
    assert found["bottlenecks"] == (None, None)
