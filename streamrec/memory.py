"""How much memory a stream may use, by the machine and the ranks on it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from streamrec.config import MIB

if TYPE_CHECKING:
    from streamrec.config import DatasetSettings

__all__ = ["memory_budget"]


def memory_budget(settings: DatasetSettings) -> int:
    """The budget in bytes: as set, or min(1 GiB, a quarter of the memory limit / local ranks).

    The ranks on this machine are those of ``LOCAL_WORLD_SIZE``, which torchrun and others set.
    """
    if settings.memory_budget != "auto":
        return int(settings.memory_budget)
    return max(64 * MIB, min(1024 * MIB, _memory_limit() // (4 * _local_ranks())))


def _local_ranks() -> int:
    number = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return int(number) if number.isdigit() and int(number) else 1


def _memory_limit() -> int:
    """Bytes: the cgroup's limit where one is set (v2, then v1), else the machine's memory."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            limit = Path("/sys/fs/cgroup", name).read_text().strip()
        except OSError:
            continue
        return min(physical, int(limit)) if limit.isdigit() else physical
    return physical
