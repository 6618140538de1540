"""The load of this machine while a job ran: its own, and that of other programs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
