"""The demo from beginning to end."""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

import numpy as np

from streamrec import __version__, kernel
from streamrec.demo import processes
from streamrec.demo.plan import Plan
from streamrec.demo.ranks import Account, Rank
from streamrec.demo.shards import pictures, write_shards
from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

__all__ = ["Summary", "Watcher", "run"]

LOOK = 0.1
"""Seconds between two looks at how far the ranks are."""


@dataclass(frozen=True)
class Summary:
    """What came of it."""

    records: int
    """Delivered, in all epochs and ranks."""
    bytes: int
    """Of their values."""
    epochs: int
    ranks: int
    shards: int
    first_batch_seconds: float
    """From connecting to the first batch, of the rank that waited longest."""
    stream_seconds: float
    """From connecting to the last batch."""
    megabytes_per_second: float
    records_per_second: float
    resumed_at_step: int | None
    """The step at which one rank was stopped and went on from its state."""
    lost: int
    """Records that an epoch lacks, over all epochs."""
    repeated: int
    """Deliveries too many."""
    damaged: int
    """Records that are not what was written."""
    seconds: float
    """All of it, with writing and starting."""
    kernel: str
    version: str

    @property
    def ok(self) -> bool:
        """Whether every record arrived exactly once an epoch, as it was written."""
        return not (self.lost or self.repeated or self.damaged)


class Watcher(Protocol):
    """Who is told how far it is."""

    def note(self, text: str) -> None:
        """A step is done."""
        ...

    def progress(self, what: str, done: int, total: int) -> None:
        """So many records of something are done."""
        ...


def run(watcher: Watcher, *, plan: Plan | None = None, keep: Path | None = None) -> Summary:
    """Run the demo; nothing is left of it, neither files nor processes.

    Args:
        watcher: Is told how far it is.
        plan: How much of what; ``None``: the usual.
        keep: A new or empty directory to work in, and to leave as it is at the end.

    Raises:
        ConfigError: The directory cannot be used.
        StreamrecError: Something did not work.
    """
    plan = plan or Plan()
    begun = time.perf_counter()
    with _directory(keep) as directory:
        bucket = directory / "buckets" / processes.BUCKET
        bucket.mkdir(parents=True)
        with processes.store(directory, plan) as store:
            size = write_shards(
                bucket, plan, lambda done: watcher.progress("writing", done, plan.records)
            )
            endpoint = store.ready()["endpoint"]
            watcher.note(
                f"wrote {plan.records:,} JPEG records, {size / 1e6:.0f} MB, into {plan.shards} "
                f"shards, behind {endpoint} with {1e3 * plan.latency:.0f} ms to the first byte"
            )
            # The feeder is closed first: that ends whatever a rank may wait for.
            with (
                ThreadPoolExecutor(plan.ranks, "rank") as threads,
                processes.feeder(directory, plan, endpoint) as feeder,
            ):
                ranks, started = _stream(threads, feeder, plan, watcher)
    return _summary(plan, ranks, started, begun)


@contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with TemporaryDirectory(prefix="streamrec-demo-") as name:
            yield Path(name)
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
        used = any(keep.iterdir())
    except OSError as error:
        raise ConfigError(f"{keep}: {error.strerror}; name a new directory") from None
    if used:
        raise ConfigError(f"{keep} is not empty; name a new directory")
    yield keep.absolute()


def _stream(
    threads: ThreadPoolExecutor, feeder: processes.Child, plan: Plan, watcher: Watcher
) -> tuple[list[Rank], float]:
    """Let all ranks take their batches; gives them, and when they began."""
    where = feeder.ready()
    processes.check_ready(where["status"])
    address = f"{where['listen'][0]}/pictures"
    watcher.note(f"started a feeder, process {feeder.process.pid}, at {address}")
    images, stopping = pictures(), threading.Event()
    ranks = [
        Rank(address, number, plan, Account(plan, images), stopping) for number in range(plan.ranks)
    ]
    started = time.perf_counter()
    try:
        _watch([threads.submit(rank.run) for rank in ranks], ranks, plan, watcher)
    finally:
        stopping.set()
    return ranks, started


def _watch(
    running: Iterable[Future[None]], ranks: Sequence[Rank], plan: Plan, watcher: Watcher
) -> None:
    """Wait for all ranks, or for the first that fails."""
    total = plan.records * plan.epochs
    pending = set(running)
    while pending:
        done, pending = wait(pending, LOOK, FIRST_EXCEPTION)
        for future in done:
            future.result()
        watcher.progress("streaming", sum(rank.account.records for rank in ranks), total)


def _summary(plan: Plan, ranks: Sequence[Rank], started: float, begun: float) -> Summary:
    accounts = [rank.account for rank in ranks]
    counts = sum(account.counts for account in accounts)
    records = sum(account.records for account in accounts)
    size = sum(account.bytes for account in accounts)
    took = max(rank.finished for rank in ranks) - started
    return Summary(
        records=records,
        bytes=size,
        epochs=plan.epochs,
        ranks=plan.ranks,
        shards=plan.shards,
        first_batch_seconds=round(max(rank.first_batch or 0.0 for rank in ranks), 3),
        stream_seconds=round(took, 3),
        megabytes_per_second=round(size / 1e6 / took, 1),
        records_per_second=round(records / took, 1),
        resumed_at_step=ranks[plan.stopped_rank].resumed_at,
        lost=int(np.count_nonzero(counts == 0)),
        repeated=int(np.maximum(counts - 1, 0).sum()),
        damaged=sum(account.damaged for account in accounts),
        seconds=round(time.perf_counter() - begun, 2),
        kernel=kernel.implementation,
        version=__version__,
    )
