from __future__ import annotations

import pytest

from streamrec.measure.figures import Sample
from streamrec.measure.rates import (
    busy_part,
    is_steady,
    mean_rate,
    requests_of,
    steady_rate,
    used_part,
)
from tests.measure.worlds import MB, a_job


@pytest.mark.parametrize(
    ("ran", "waited", "busy"),
    [
        (4.0, 4.0, 0.5),
        (9.0, 1.0, None),  # little
        (0.5, 0.5, None),  # of a job that hardly needs a core
        (18.0, 9.0, None),  # its own threads wait for one another
        (8.0, 2.0, 0.2),
        (8.1, 2.0, None),
        (1.0, 1.0, 0.5),
        (0.99, 0.99, None),
        (14.9, 14.9, 0.5),
        (15.0, 15.0, None),  # three quarters of both cores
        (0.0, 0.0, None),
        (None, 1.0, None),
        (1.0, None, None),
        (None, None, None),
    ],
)
def test_others_have_the_cores(ran: float | None, waited: float | None, busy: float | None) -> None:
    job = a_job(seconds=10.0, core_seconds=ran, core_wait_seconds=waited)
    assert busy_part(job, 2) == busy


def test_the_part_of_the_cores() -> None:
    assert used_part(a_job(seconds=10.0, core_seconds=5.0), 4) == 0.125
    assert used_part(a_job(), 4) is None
    assert used_part(a_job(seconds=0.0, core_seconds=5.0), 4) is None
    assert busy_part(a_job(seconds=0.0, core_seconds=5.0, core_wait_seconds=5.0), 4) == 0.5


def test_the_rate_is_that_behind_the_ramp() -> None:
    sizes = [1 * MB] * 2 + [10 * MB] * 4
    samples = [
        Sample(at=at + 1.0, seconds=1.0, bytes=size, records=1) for at, size in enumerate(sizes)
    ]
    steady = {"seconds": 6.0, "bytes": 42 * MB, "batches": 42}
    assert steady_rate(a_job(samples=samples, **steady)) == 10 * MB
    late = [one.model_copy(update={"at": one.at + 5.0}) for one in samples]
    first = [Sample(at=5.0, seconds=5.0, bytes=0, records=0)]
    later = {**steady, "seconds": 11.0, "first_batch_seconds": 5.0}
    assert steady_rate(a_job(samples=first + late, **later)) == 10 * MB
    job = a_job(seconds=11.0, first_batch_seconds=1.0, batches=101, bytes=101 * MB)
    assert steady_rate(job) == pytest.approx(10 * MB)
    assert steady_rate(a_job(seconds=2.0, batches=1, bytes=10 * MB)) == 5 * MB


def test_an_unsteady_job_has_its_mean_rate() -> None:
    """As its waits, which are those of the whole job."""
    sizes = [60 * MB] * 2 + [MB] * 4
    samples = [
        Sample(at=at + 1.0, seconds=1.0, bytes=size, records=1) for at, size in enumerate(sizes)
    ]
    job = a_job(seconds=6.0, batches=124, bytes=124 * MB, samples=samples)
    assert not is_steady(job)
    assert steady_rate(job) == mean_rate(job) == pytest.approx(20.5 * MB)


def in_flight(*counts: int) -> list[Sample]:
    return [
        Sample(at=at + 1.0, seconds=1.0, bytes=MB, records=1, in_flight=count)
        for at, count in enumerate(counts)
    ]


def test_requests_took_as_long_as_little_says() -> None:
    """Those under way are seen behind the listing alone."""
    samples = in_flight(0, 0, *[40] * 8)
    job = a_job(seconds=12.0, requests=100, bytes=50 * MB, waits={"list": 2.0}, samples=samples)
    assert requests_of(job) == (40, 4.0, MB / 2)


def test_requests_that_were_hardly_seen_tell_nothing() -> None:
    assert requests_of(a_job()) is None
    assert requests_of(a_job(samples=in_flight(*[40] * 5))) is None
    assert requests_of(a_job(samples=in_flight(*[40] * 6))) is not None
    assert requests_of(a_job(samples=in_flight(*[40] * 6), requests=0)) is None
