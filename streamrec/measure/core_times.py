"""Reads for how long this process's threads ran on a core, and waited for one."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

TASKS = Path("/proc/self/task")
"""A directory for each thread; ``schedstat`` in it begins with both times in nanoseconds (Linux,
Documentation/scheduler/sched-stats)."""


class CoreSeconds(NamedTuple):
    """Seconds of all threads together."""

    ran: float
    waited: float
    """Seconds for which a thread could have run, and had no core."""


class CoreTimes:
    """The times of this process's threads from now on.

    A thread that ends is counted as it was last seen, so look now and then.
    """

    def __init__(self) -> None:
        self._before = _read()
        self._seen = dict(self._before)

    def seconds(self) -> CoreSeconds | None:
        """Return the times until now; ``None``: the system does not tell them."""
        self._seen.update(_read())
        if not self._seen:
            return None
        nothing = CoreSeconds(0, 0)
        gone = [(now, self._before.get(thread, nothing)) for thread, now in self._seen.items()]
        return CoreSeconds(
            sum(now.ran - before.ran for now, before in gone),
            sum(now.waited - before.waited for now, before in gone),
        )


def _read() -> dict[str, CoreSeconds]:
    found = {}
    for path in TASKS.glob("*/schedstat"):
        try:
            ran, waited = map(int, path.read_text().split()[:2])
        except (OSError, ValueError):  # the thread has ended, or the kernel counts nothing
            continue
        found[path.parent.name] = CoreSeconds(ran / 1e9, waited / 1e9)
    return found
