"""Times one reading of a dataset, within the process that reads; standard library only."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from bench.usage import Usage, children, helpers_usage, usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class Stopwatch:
    """Measures from before the dataset is opened to its last batch.

    Args:
        companions: Ids of the other processes that work for this reading, by name.
    """

    def __init__(self, companions: Mapping[str, int]) -> None:
        self.records = self.label_sum = 0
        self.nbytes: int | None = None
        """Size of the shards, where the reader knows it itself."""
        self._pids = {"client": os.getpid(), **companions}
        self._first: float | None = None
        self._first_records = 0
        self._last = self._longest_wait = 0.0
        self._stopped = self._started = self._helpers_before = 0.0
        self._before: dict[str, Usage] = {}
        self._after: dict[str, Usage] = {}

    def start(self) -> None:
        """Start, right before the dataset is opened and after all modules are imported."""
        self._before = {name: usage(pid) for name, pid in self._pids.items()}
        self._helpers_before = helpers_usage(os.getpid()).cpu_seconds
        self._started = time.perf_counter()

    def take(self, records: int, label_sum: int) -> None:
        """Count a batch that has arrived."""
        now = time.perf_counter()
        if self._first is None:
            self._first, self._first_records = now, records
        else:
            self._longest_wait = max(self._longest_wait, now - self._last)
        self._last = now
        self.records += records
        self.label_sum += label_sum

    def stop(self) -> None:
        """Stop, after the last batch and while the processes that were started still run.

        Those count as the engine, start included, since that is part of the cost.
        """
        self._stopped = time.perf_counter()
        self._after = {name: usage(pid) for name, pid in self._pids.items()}
        helpers = helpers_usage(os.getpid())
        if helpers.cpu_seconds > self._helpers_before or children(os.getpid()):
            self._before["engine"] = Usage(self._helpers_before, 0.0)
            self._after["engine"] = helpers

    def print(self, **more: object) -> None:
        """Print what was measured as one JSON line.

        Args:
            more: More plain values for the report.
        """
        report = {
            "seconds": self._stopped - self._started,
            "first_batch_seconds": self._first and self._first - self._started,
            "first_batch_share": self._first_records / self.records if self.records else None,
            "longest_wait_seconds": self._longest_wait,
            "records": self.records,
            "label_sum": self.label_sum,
            "nbytes": self.nbytes,
            "cpu_seconds": {
                name: after.cpu_seconds - self._before[name].cpu_seconds
                for name, after in self._after.items()
            },
            "peak_megabytes": {name: after.peak_megabytes for name, after in self._after.items()},
            "idle_megabytes": self._before["client"].peak_megabytes,
            **more,
        }
        print(json.dumps(report), flush=True)


class Done(NamedTuple):
    """A piece of work that a reader has done."""

    records: int
    label_sum: int | None = None
    """Sum of the labels, where the records were parsed."""
    nbytes: int | None = None
    """Size of the frames, where the records were not parsed."""


def repeat(work: Callable[[], Iterator[Done]], seconds: float) -> None:
    """Time endless work for a while, and print the report.

    Args:
        work: Function that begins the work; its first piece is done once before, untimed.
        seconds: Least time; the piece of work that runs then is finished.
    """
    next(work())
    watch = Stopwatch({})
    watch.start()
    end = time.perf_counter() + seconds
    for done in work():
        watch.take(done.records, done.label_sum or 0)
        if done.nbytes is not None:
            watch.nbytes = (watch.nbytes or 0) + done.nbytes
        if time.perf_counter() >= end:
            break
    watch.stop()
    watch.print()
