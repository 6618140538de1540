"""The rates of a job, and the time that its requests took. Pure."""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from streamrec.report.verdict import FULL

if TYPE_CHECKING:
    from streamrec.measure.figures import Job


MUCH = 0.2
"""The part of the time in which threads could run from which on the wait for a core is told."""
FELT = 0.1
"""The least wait for a core of all threads, in parts of the job's time; less slows nothing down."""


def busy_part(job: Job, cores: int) -> float | None:
    """Return for which part of the time in which a job's threads could run others had the cores.

    Args:
        job: The job.
        cores: Those that it may use.

    Returns:
        A part of 1; ``None``: others had them for little time, or the system does not tell it.
    """
    ran, waited = job.core_seconds, job.core_wait_seconds
    if ran is None or waited is None or (used_part(job, cores) or 0.0) >= FULL:
        return None
    part = waited / (ran + waited) if ran + waited else 0.0
    return part if part >= MUCH and waited >= FELT * job.seconds else None


def used_part(job: Job, cores: int) -> float | None:
    """Return the part of all cores' time that a job used; ``None``: it is not known."""
    if job.core_seconds is None or not job.seconds:
        return None
    return job.core_seconds / (cores * job.seconds)


RAMP = 1 / 3
"""The part of a job's samples in which the engine still finds its number of requests."""
FEWEST_SAMPLES = 6
UNSTEADY = 1.5
"""Times by which a job's rate after the ramp and its mean may differ."""


def steady_rate(job: Job) -> float:
    """Return the bytes a second after the first batch and the ramp.

    The waits are those of the whole job. So where its rate was not steady, it is the mean.
    """
    behind = _behind_ramp(job)
    return behind if behind is not None and is_steady(job) else mean_rate(job)


def has_ramp(job: Job) -> bool:
    """Return whether a job is long enough to tell its rate after the ramp."""
    return _behind_ramp(job) is not None


def is_steady(job: Job) -> bool:
    """Return whether the rate after the ramp is about that of the whole job."""
    mean, behind = mean_rate(job), _behind_ramp(job)
    return behind is None or mean / UNSTEADY <= behind <= mean * UNSTEADY


def _behind_ramp(job: Job) -> float | None:
    # Whole samples after the first batch: the wait for it is the start's.
    behind = [one for one in job.samples if one.at - one.seconds >= job.first_batch_seconds]
    # Until then the engine is still looking for its number of requests.
    samples = behind[math.ceil(len(behind) * RAMP) :]
    if len(behind) < FEWEST_SAMPLES or not any(sample.bytes for sample in samples):
        return None
    return sum(sample.bytes for sample in samples) / sum(sample.seconds for sample in samples)


def read_rate(job: Job) -> float:
    """Return the bytes a second that came from the store, after the listing."""
    seconds = job.seconds - job.waits.get("list", 0.0)
    return job.bytes_read / seconds if seconds > 0 else 0.0


def mean_rate(job: Job) -> float:
    """Return the bytes a second after the first batch."""
    seconds = job.seconds - job.first_batch_seconds
    if job.batches < 2 or seconds <= 0:
        return job.bytes / job.seconds
    # The first batch had its own time, and leaves with it.
    return job.bytes * (1 - 1 / job.batches) / seconds


class Requests(NamedTuple):
    """The requests of a job, as they were on the average."""

    under_way: float
    """Requests at a time."""
    seconds: float
    """Seconds of each."""
    bytes: float
    """Bytes of each."""


def requests_of(job: Job) -> Requests | None:
    """Return the requests of a job; ``None``: too few were seen under way."""
    listed = job.waits.get("list", 0.0)
    counts = [one.in_flight for one in job.samples if one.in_flight is not None and one.at > listed]
    if len(counts) < FEWEST_SAMPLES or not job.requests:
        return None
    count = fmean(counts)
    # Little: requests under way = requests a second x seconds of each.
    seconds = count * (job.seconds - listed) / job.requests
    return Requests(count, seconds, job.bytes_read / job.requests)
