"""The memory that a rank's run needs, the division of its budget, and what it measures."""

from __future__ import annotations

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from streamrec.config.dataset import LEAST_BUDGET
from streamrec.errors import ConfigError
from streamrec.flow.cleanup import start_threads
from streamrec.flow.cores import step_back
from streamrec.flow.stages import WaitClock
from streamrec.flow.timings import Timings
from streamrec.plan.reading.ranges import MemoryPlan, least_budget

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.flow.cores import Cores

FETCHED = (
    *("requests", "retries", "throttled", "cut"),
    *("hedges", "hedges_won", "hedges_lost"),
    *("bytes_read", "bytes_used"),
    *("cache_hits", "cache_bytes"),
)
"""The names of what the fetch engine counts from the start."""
COUNTERS = (
    *(*FETCHED, "seconds_waited", "refetched", "decompressed_from", "decompressed_to"),
    *("cached_batches", "cached_pictures", "cached_mapped"),
)
"""The names of the statistics that count from the start, without those of delivery."""

MOST_WAITING_BATCHES = 256
"""The most batches that wait for a consumer by default. Of tiny ones a budget holds millions: they
take far more than their bytes, and no trainer needs them so early."""


def most_waiting(prefetch: int | str) -> int:
    """Return how many batches may wait for the consumer, by the setting of that name."""
    return MOST_WAITING_BATCHES if isinstance(prefetch, str) else prefetch


@dataclass
class Measures:
    """The measures of one run, from its start on; all its stages count on the same."""

    counts: Counter[str] = field(default_factory=Counter)
    timings: Timings = field(default_factory=Timings)
    waits: WaitClock = field(default_factory=WaitClock)


MIB = 1 << 20


class RunCeiling(NamedTuple):
    """The limits that a feeder sets to each of its runs, whatever the dataset's settings say."""

    max_bytes: int = sys.maxsize
    """Bytes of a batch, and of what decoding takes besides."""
    max_pixels: int = sys.maxsize
    """Pixels of a picture."""
    borrow: Callable[[int], object] | None = None
    """Lends the run so many bytes more; ``None``: it overdraws."""
    cores: Cores | None = None
    """The cores that it shares with other runs. Its threads then yield to the event loop, too."""

    def threads(self, name: str, most: int) -> ThreadPoolExecutor:
        """Make an executor of the run's work."""
        return ThreadPoolExecutor(most, name, step_back if self.cores else None)

    async def start(self, threads: ThreadPoolExecutor, most: int) -> None:
        """Start all threads of an executor in a feeder, whose loop must not wait for them."""
        if self.cores is not None:
            await start_threads(threads, most)


NO_CEILING = RunCeiling()


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """The parts of a run that must be in memory together, whatever its budget is."""

    lanes: int
    """The rank's lanes."""
    sublanes: int
    """The shards that the lanes have open at once."""
    packs: int
    """Bytes of the packs that the lanes fill."""
    windows: int
    """Bytes of the lanes' shuffle windows."""
    near: bool
    """True if the shards are files on this machine."""
    has_episodes: bool = False
    """True if windows of episodes are cut, whose pictures are kept while there is room."""

    @property
    def least(self) -> int:
        """Return the smallest budget that :meth:`divide` accepts, and settings do; in bytes."""
        least = self.packs + least_budget(self.sublanes, self.windows)
        # Twice the packs: more than half of a budget is refused to them.
        return max(LEAST_BUDGET, 2 * self.packs, least)

    def divide(self, total: int) -> MemoryPlan:
        """Divide a budget of ``total`` bytes.

        Raises:
            ConfigError: It is too small; the message shows the arithmetic.
        """
        if self.packs > total // 2:
            raise ConfigError(
                f"the packs that {self.lanes} lanes fill take {self.packs // MIB} MiB, more than "
                f"half of memory_budget ({total // MIB} MiB); raise memory_budget, or lower lanes "
                "or pack.bins"
            )
        # Of what no run needs: a budget that was enough still is.
        episodes = max(0, total - self.least) // 3 if self.has_episodes else 0
        left = total - self.packs - episodes
        plan = MemoryPlan.divide(left, lanes=self.sublanes, windows=self.windows, near=self.near)
        return replace(plan, episodes=episodes)
