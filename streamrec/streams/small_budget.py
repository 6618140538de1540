"""The warning of a memory budget that is too small to read ahead."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from streamrec.config.memory_budget import memory_budget
from streamrec.values.columns import size_of

if TYPE_CHECKING:
    from streamrec.config import StreamSettings
    from streamrec.pipeline.batch.batch import Batch

log = logging.getLogger(__name__)

MIB = 1 << 20
BATCHES = 3
"""One that the consumer takes, one that is decoded, and one that is read."""
RANGE = MIB
"""Bytes of a request whose body takes about as long as its first byte: 60 MB/s and 20 ms."""


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
