from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.autoscale import CORES, Job, Rule, costs_of_feeders, level_of, live, look_at, mix
from tests.support import examples

JOBS = st.lists(st.tuples(st.integers(0, 40), st.floats(0.01, 16)), min_size=1, max_size=5)


@settings(max_examples=examples(50), deadline=None)
@given(JOBS)
def test_a_feeder_gives_all_that_it_has_and_no_rank_less_than_another(
    jobs: list[tuple[int, float]],
) -> None:
    jobs = sorted(jobs, key=lambda job: job[1])
    ranks = np.array([[count] for count, _ in jobs])
    (level,) = level_of(ranks, np.array([cores for _, cores in jobs]))
    given = sum(count * min(cores, level) for count, cores in jobs)
    asked = sum(count * cores for count, cores in jobs)
    assert given == pytest.approx(min(asked, CORES))


def test_a_job_is_as_fast_as_its_slowest_rank() -> None:
    # Three ranks of ten cores at two feeders: the two at the first one share it.
    look = look_at(np.array([[2, 1]]), np.array([10.0]))
    assert look.wait == pytest.approx(1 - 8 / 10)
    assert look.busy == pytest.approx(3 * 8 / CORES)
    assert look.stalled == pytest.approx(3 * 0.2)


def test_the_rule_leads_to_the_right_size_in_one_step() -> None:
    rule = Rule()
    needed = 40.0
    for size in (5, 10, 20):
        # Feeders that are full, and clients that wait for the rest; but for the largest step.
        wanted = rule.wanted(size, 1 - size / needed)
        assert wanted == pytest.approx(min(needed, 4 * size) / rule.target)
    assert rule.size(10.4, 10) == 10
    assert rule.size(11.2, 10) == 12
    assert rule.size(0.0, 3) == 2


def test_one_job_gets_what_it_needs_for_as_long_as_it_runs() -> None:
    job = Job(3600.0, 5 * 3600.0, 64, 1.0)
    day = live([job], 0, Rule())
    sizes = {hour: size for hour, size, _ in day.trace}
    # Within the tolerance it is left at what suffices.
    assert 64 / CORES <= max(sizes.values()) <= math.ceil(64 / CORES / Rule().target)
    assert [size for hour, size in sizes.items() if hour > 5.5] == [2] * sum(h > 5.5 for h in sizes)
    assert day.turns <= 0.5
    assert day.stall < 0.02


def test_mixes_of_jobs_wait_little_and_cost_little() -> None:
    costs = costs_of_feeders()
    assert len(costs) == 3, "one of each kind of records"
    days = [live(mix(np.random.default_rng([seed, 0]), costs), seed, Rule()) for seed in range(3)]
    assert np.mean([day.stall for day in days]) < 0.01
    assert np.mean([day.ratio for day in days]) < 1.2
    assert max(day.turns for day in days) < 1
