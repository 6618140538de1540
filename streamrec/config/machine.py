"""The memory and the cores that a stream, a record and a daemon may use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from streamrec.config.dataset import MIB
from streamrec.config.environment import local_ranks
from streamrec.surroundings import allowed_cores, has_interpreter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrec.config import DatasetSettings
    from streamrec.config.server_settings import ServerSettings

LEAST_BATCH = 48 * MIB
"""Bytes of the largest batch, however small the budget is."""
MOST_PIXELS = (1 << 30) // 4 // 3
"""Pixels of one picture, all frames together: a quarter GiB in colour, as Pillow's own limit is."""


def memory_budget(settings: DatasetSettings) -> int:
    """Return the stream's budget in bytes: the setting, or a share of the machine's memory."""
    budget = settings.memory_budget
    return automatic_budget() if budget == "auto" else int(budget)


def daemon_budget(settings: ServerSettings) -> int:
    """Return the budget of all sessions of a daemon in bytes: the setting, or half of the memory.

    The other half is for what no budget counts: the processes themselves, records and batches that
    are larger than their share, and what waits in the system's buffers to be sent.
    """
    budget = settings.memory_budget
    return max(64 * MIB, _memory_limit() // 2) if budget == "auto" else int(budget)


def daemon_batch_limit(settings: ServerSettings) -> int:
    """Return the bytes of the largest batch of a daemon: the setting, or a quarter of the budget.

    So one session leaves room for others.
    """
    limit = settings.max_bytes
    return max(LEAST_BATCH, daemon_budget(settings) // 4) if limit == "auto" else int(limit)


def daemon_pixel_limit(settings: ServerSettings) -> int:
    """Return the pixels of the largest picture of a daemon, as :func:`pixel_limit` does."""
    limit = settings.max_pixels
    return min(MOST_PIXELS, daemon_batch_limit(settings)) if limit == "auto" else limit


def shared_limit(settings: ServerSettings) -> int:
    """Return the bytes that a feeder's clients may share with it: the setting, or a quarter."""
    limit = settings.shared_memory
    return _memory_limit() // 4 if limit == "auto" else int(limit)


def record_limit(settings: DatasetSettings) -> int:
    """Return the length of the longest record in bytes: the setting, or the memory budget.

    A record of that length overdraws its lane's share; the budget can hold it alone.
    """
    limit = settings.max_record_bytes
    return memory_budget(settings) if limit == "auto" else int(limit)


def batch_limit(settings: DatasetSettings) -> int:
    """Return the bytes of the largest batch: the setting, or a third of the memory budget.

    So the budget holds the batch that the consumer has, the next one, and the memory of the one
    before. Of small budgets the limit is 48 MiB, in which 256 pictures of 224 x 224 pixels, or one
    of 12 million, find room.
    """
    limit = settings.max_bytes
    return max(LEAST_BATCH, memory_budget(settings) // 3) if limit == "auto" else int(limit)


def pixel_limit(settings: DatasetSettings) -> int:
    """Return the pixels of the largest picture: the setting, or one for each byte of a batch."""
    limit = settings.max_pixels
    return min(MOST_PIXELS, batch_limit(settings)) if limit == "auto" else limit


def automatic_budget() -> int:
    """Return min(1 GiB, a quarter of the memory limit / local ranks), and 64 MiB at least.

    The ranks on this machine are those that the launcher tells.
    """
    return max(64 * MIB, min(1024 * MIB, memory_share()))


def memory_share() -> int:
    """Return, in bytes, a quarter of the memory limit / local ranks."""
    return _memory_limit() // (4 * local_ranks())


CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIPS = Path("/proc/self/cgroup")


def _memory_limit() -> int:
    """Return, in bytes, the lowest limit of this process' cgroups, or else the machine's memory."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    files = [folder / name for folder in _cgroups() for name in ("memory.max", "memory.high")]
    files += (folder / "memory.limit_in_bytes" for folder in _cgroups("memory"))
    # "max" stands for no limit in v2, and a number beyond all memory in v1.
    return min([physical, *(int(text) for text in map(_text, files) if text.isdigit())])


def _cgroups(controller: str = "") -> Iterator[Path]:
    """Yield the folder of this process' cgroup, and of each one above it: all their limits hold.

    Args:
        controller: A controller of v1, each of which has cgroups of its own; empty: v2, whose
            cgroups are those of all controllers.
    """
    memberships = (line.split(":", 2) for line in _text(MEMBERSHIPS).splitlines())
    own = next((one[2] for one in memberships if controller in one[1].split(",")), "/")
    # A container sees its own cgroup as the root, whatever it is called outside. That of a service
    # or of a job of Slurm stands below the root.
    parts = [] if ".." in own else own.strip("/").split("/")
    for count in range(len(parts), -1, -1):
        yield CGROUPS.joinpath(controller, *parts[:count])


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def worker_count(settings: ServerSettings) -> int:
    """Return the number of a daemon's worker processes: the setting, or the cores to use."""
    return usable_cores() if settings.workers == "auto" else settings.workers


MOST_FETCH_PROCESSES = 4
"""As many as one orderer can follow: each brings 1 to 2 GB/s, and it scans 4 to 8."""


def fetch_process_count(settings: DatasetSettings) -> int:
    """Return the number of fetch processes: the setting, or fewer than half of this rank's cores.

    The other half is for the orderer, for decoding threads and for the trainer.
    """
    if settings.fetch_processes != "auto":
        return settings.fetch_processes
    if not hasattr(os, "memfd_create") or not has_interpreter():  # none can be started here
        return 0
    cores = usable_cores() // local_ranks()
    return max(0, min(MOST_FETCH_PROCESSES, cores // 2 - 1))


def usable_cores() -> int:
    """Return the number of cores of the affinity mask, or fewer by the cgroup's quota (v2, v1).

    A quota of one and a half cores is one: two processes would be stopped in turn.
    """
    cores, quota = allowed_cores(), _quota()
    return cores if quota is None else max(1, min(cores, int(quota)))


def _quota() -> float | None:
    """Return the cores that the cgroups may use at a time; ``None``: there is no limit."""
    pairs = [_text(folder / "cpu.max").split() for folder in _cgroups()]
    names = "cpu.cfs_quota_us", "cpu.cfs_period_us"
    pairs += ([_text(folder / name) for name in names] for folder in _cgroups("cpu"))
    # Microseconds of CPU time in each period, in both versions; "max" or -1 is no limit.
    limits = (pair for pair in pairs if len(pair) == 2 and all(map(_is_positive, pair)))
    return min((int(quota) / int(period) for quota, period in limits), default=None)


def _is_positive(number: str) -> bool:
    return number.isdigit() and int(number) > 0
