"""Warnings at the first batch: of settings that cost more than their names tell."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from streamrec.config.machine import memory_budget
from streamrec.values.columns import size_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.config import StreamSettings
    from streamrec.pipeline.batch.batch import Batch

log = logging.getLogger(__name__)

MIB = 1 << 20
BATCHES = 3
"""One that the consumer takes, one that is decoded, and one that is read."""
RANGE = MIB
"""Bytes of a request whose body takes about as long as its first byte: 60 MB/s and 20 ms."""

LEFT_OUT = 100
"""The part of its records that a run may leave out without a word is one in so many."""


_told: set[str] = set()
"""The warnings of records that this process has logged."""


def warn_of_records_left_out(
    settings: StreamSettings, facts: Mapping[str, Any], world_size: int
) -> None:
    """Log a warning if runs leave out many records, and no setting asked for that.

    The same warning is logged once a process: each run of a job would repeat it.

    Args:
        settings: Those of the stream.
        facts: What the session knows of its dataset.
        world_size: The number of ranks.
    """
    left_out = -(facts["surplus"] or 0)
    if settings.remainder is not None or left_out <= 0:
        return
    rows = facts["batch_size"] * world_size
    records = facts["length"] * rows + left_out
    text = (
        f"each run leaves out {left_out} of {records} records, since {facts['lanes']} lanes and "
        f"batches of {rows} rows of all ranks do not divide them; "
        + _ways_to_keep_records(settings, facts["lanes"], world_size)
    )
    if left_out * LEFT_OUT > records and text not in _told:
        _told.add(text)
        log.warning("%s", text)


def _ways_to_keep_records(settings: StreamSettings, lanes: int, world_size: int) -> str:
    """Return the settings to choose; a job that resumes may change only the first."""
    ways = []
    if settings.balance is None and settings.exhausted == "repeat":
        ways.append(
            'set remainder="pad", also when a job resumes: every record comes once, and masked '
            "rows fill the last batches"
        )
    if lanes > world_size:
        ways.append(f"in a new run, set lanes={world_size}, which leaves out fewest")
    return "; or ".join(ways) or "in a new run, set a smaller batch_size"


def enough(batch: int, lanes: int, windows: int) -> int:
    """Return the budget in bytes with which batches and requests overlap.

    Args:
        batch: Bytes of a batch.
        lanes: The rank's lanes.
        windows: Bytes of their shuffle windows.
    """
    return windows + BATCHES * batch + lanes * RANGE


def warn_of_small_budget(
    settings: StreamSettings, lanes: int, world_size: int, batch: Batch
) -> None:
    """Log a warning if the budget cannot hold three batches, and a range for each lane.

    Args:
        settings: Those of the stream.
        lanes: The lanes of all ranks.
        world_size: The number of ranks.
        batch: Its first batch.
    """
    # This rank's alone, as budget and batch are.
    lanes //= world_size
    windows = int(settings.shuffle_window) // world_size if settings.has_windows else 0
    size = sum(map(size_of, batch.columns.values()))
    budget, needed = memory_budget(settings), enough(size, lanes, windows)
    if budget < needed:
        log.warning(
            "memory_budget is %.0f MiB, so requests and batches wait for one another: a batch has "
            "%.1f MiB, and three of them with a range for each of %d lanes%s take %.0f MiB; raise "
            "memory_budget to that, or lower batch_size or lanes",
            *(budget / MIB, size / MIB, lanes, " and the shuffle_window" if windows else ""),
            -(-needed // MIB),
        )
