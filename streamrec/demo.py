"""``streamrec demo``: a whole job on one machine; each record must arrive exactly once an epoch.

It runs an object store with latency, a feeder in a process of its own, and a client a rank. One
rank stops in the middle and goes on from its saved state.

The numbers fit together: every lane meets the same number of equal shards an epoch, so that epochs
end at a step, and the ranks' steps are exactly all records.
"""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec import kernel
from streamrec.datasets.sample_pictures import sample_pictures
from streamrec.datasets.writer import TFRecordWriter
from streamrec.errors import ConfigError
from streamrec.flow.child_process import ChildProcess
from streamrec.report.words import size
from streamrec.streams.opening import connect
from streamrec.surroundings import absolute, temporary_directory
from streamrec.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from streamrec.pipeline.batch.batch import Batch


def write_shards(directory: Path, plan: DemoPlan, progress: Callable[[int], None]) -> int:
    """Write the plan's shards.

    Args:
        directory: The existing directory for them.
        plan: The numbers of shards and records.
        progress: Called with the number of records that are written.

    Returns:
        Their size in bytes.
    """
    images = sample_pictures()
    size = 0
    for shard in range(plan.shards):
        path = directory / f"pictures-{shard:05}-of-{plan.shards:05}.tfrecord"
        with TFRecordWriter(path) as writer:
            for number in range(
                shard * plan.records_per_shard, (shard + 1) * plan.records_per_shard
            ):
                label = number % len(images)
                # The label names the picture, so a record that came from another place is noticed.
                writer.write({"id": number, "label": label, "image": images[label]})
        size += writer.nbytes
        progress((shard + 1) * plan.records_per_shard)
    return size


FEATURES: dict[str, dict[str, Any]] = {
    "id": {"kind": "fixed", "shape": [], "dtype": "int64"},
    "label": {"kind": "fixed", "shape": [], "dtype": "int64"},
    "image": {"kind": "fixed", "shape": [], "dtype": "bytes"},
}


@dataclass(frozen=True)
class DemoPlan:
    """The amounts of the demo."""

    shards: int = 32
    records_per_shard: int = 32
    lanes: int = 16
    ranks: int = 2
    batch_size: int = 16
    epochs: int = 2
    latency: float = 0.04
    """Seconds to the store's first byte: that of a bucket in the same region."""
    shuffle_window: int = 32_000_000
    """The bytes of the windows of all lanes."""
    stopped_rank: int = 1
    """The rank that is stopped and resumed."""

    @property
    def records(self) -> int:
        """The number of records of one epoch."""
        return self.shards * self.records_per_shard

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches of each rank in one epoch."""
        return self.records // (self.ranks * self.batch_size)

    @property
    def stop_step(self) -> int:
        """The number of batches, in the first epoch, after which the rank is stopped."""
        return max(1, self.steps_per_epoch * 5 // 8)


class ReceivedRecords:
    """The count of the records that one rank has received.

    Args:
        plan: The records to receive.
        images: The pictures by label.
    """

    def __init__(self, plan: DemoPlan, images: list[bytes]) -> None:
        self.counts = np.zeros((plan.epochs, plan.records), np.int64)
        """int64 ``[epochs, records]``: the number of times that each record came in each epoch."""
        self.records = 0
        self.bytes = 0
        self.damaged = 0
        """The records that differ from what was written."""
        self._images = images

    def add(self, batch: Batch) -> None:
        """Count the records of one batch."""
        columns: dict[str, Any] = dict(batch)
        rows = zip(columns["id"].tolist(), columns["label"].tolist(), columns["image"], strict=True)
        for number, label, image in rows:
            if self._is_written(batch.epoch, number, label, image):
                self.counts[batch.epoch, number] += 1
            else:
                self.damaged += 1
            # The id and the label have eight bytes each.
            self.bytes += len(image) + 16
        self.records += len(batch)

    def _is_written(self, epoch: int, number: int, label: int, image: bytes) -> bool:
        epochs, records = self.counts.shape
        is_possible = 0 <= epoch < epochs and 0 <= number < records
        return is_possible and number % len(self._images) == label and image == self._images[label]


@dataclass
class DemoRank:
    """One rank: a client of the feeder, to be run in a thread of its own."""

    address: str
    number: int
    plan: DemoPlan
    received: ReceivedRecords
    stopping: threading.Event
    """An event that is set to end the demo early."""
    first_batch: float | None = None
    """The seconds from connecting to the first batch."""
    finished: float = 0.0
    """The time of the last batch, from ``time.perf_counter()``."""
    resumed_at: int | None = None
    """The step of the state from which it was resumed."""
    _started: float = field(default=0.0, repr=False)

    def run(self) -> None:
        """Take all batches; the plan's stopped rank stops in the middle, and then resumes."""
        self._started = time.perf_counter()
        stopped = self.number == self.plan.stopped_rank
        state = self._follow(None, self.plan.stop_step if stopped else None)
        if stopped and not self.stopping.is_set():
            state = json.loads(json.dumps(state))  # as a checkpoint on disk would hold it
            self.resumed_at = state["step"]
            self._follow(state, None)

    def _follow(self, state: dict[str, Any] | None, stop_step: int | None) -> dict[str, Any]:
        """Connect, take batches, and return the state after the last one."""
        # The demo closes its feeder to end early: a rank must not look for it again.
        stream = connect(self.address, rank=self.number, world_size=self.plan.ranks, retry_for=0.0)
        if state is not None:
            stream.load_state_dict(state)
        with stream:
            for step, batch in enumerate(stream, 1):
                self._enter(batch)
                # A break keeps the state of the last batch that was taken, as a killed trainer's
                # checkpoint would.
                if step == stop_step or self.stopping.is_set():
                    break
        return stream.state_dict()

    def _enter(self, batch: Batch) -> None:
        # Before the records are counted, which is the demo's own work.
        self.finished = time.perf_counter()
        if self.first_batch is None:
            self.first_batch = self.finished - self._started
        self.received.add(batch)


KEY, SECRET = "demo", "demo-secret"
BUCKET = "demo"


def start_store(directory: Path, plan: DemoPlan) -> ChildProcess:
    """Start the loopback object store over the buckets in ``directory``."""
    options = {"root": directory / "buckets", "latency": plan.latency, "key": KEY, "secret": SECRET}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    log = directory / "store.log"
    return ChildProcess("store", ["streamrec.devstore", *arguments], log)


def start_feeder(directory: Path, plan: DemoPlan, endpoint: str) -> ChildProcess:
    """Start the daemon, ``streamrec serve``, over the shards in the store."""
    config = directory / "feeder.toml"
    config.write_text(_configuration(plan, endpoint))
    arguments = ["streamrec", "serve", str(config), "--json"]
    return ChildProcess("feeder", arguments, directory / "feeder.log")


def _configuration(plan: DemoPlan, endpoint: str) -> str:
    options = {"key": KEY, "secret": SECRET, "endpoint_url": endpoint}
    features = [_table(f"datasets.pictures.features.{name}", FEATURES[name]) for name in FEATURES]
    dataset = {
        "source": f"s3://{BUCKET}/pictures-*.tfrecord",
        "batch_size": plan.batch_size,
        "shuffle": True,
        "shuffle_window": plan.shuffle_window,
        "lanes": plan.lanes,
        "epochs": plan.epochs,
        "steps_per_epoch": plan.steps_per_epoch,
    }
    # Port 0 is any free one, so that demos do not meet.
    server = {"listen": ["tcp://127.0.0.1:0"], "status": "127.0.0.1:0"}
    tables = [
        _table("server", server),
        _table("datasets.pictures", dataset),
        _table("datasets.pictures.storage_options", options),
        *features,
    ]
    return "\n".join(tables)


def _table(name: str, values: dict[str, Any]) -> str:
    """Return a table of TOML; these kinds of values look the same in JSON."""
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in values.items()]
    return f"[{name}]\n{''.join(lines)}"


PROGRESS_SECONDS = 0.1
"""Seconds between two calls of ``progress`` while the ranks take batches."""
DEFAULT_PLAN = DemoPlan()


@dataclass(frozen=True)
class Summary:
    """The results of the demo."""

    records: int
    """The records that were delivered, in all epochs and ranks."""
    bytes: int
    """The bytes of their values."""
    epochs: int
    ranks: int
    shards: int
    first_batch_seconds: float
    """The time from connecting to the first batch, of the rank that waited longest."""
    stream_seconds: float
    """The time from connecting to the last batch."""
    megabytes_per_second: float
    records_per_second: float
    resumed_at_step: int | None
    """The step at which one rank was stopped and went on from its state."""
    lost: int
    """The records that an epoch lacks, over all epochs."""
    repeated: int
    """The deliveries of a record after the first in an epoch."""
    damaged: int
    """The records that differ from what was written."""
    seconds: float
    """The time of the whole demo, with writing and starting."""
    kernel: str
    version: str

    @property
    def ok(self) -> bool:
        """True if every record arrived exactly once an epoch, as it was written."""
        return not (self.lost or self.repeated or self.damaged)


def run(
    note: Callable[[str], object],
    progress: Callable[[str, int, int], None],
    *,
    plan: DemoPlan = DEFAULT_PLAN,
    keep: Path | None = None,
) -> Summary:
    """Run the demo; nothing is left of it, neither files nor processes.

    Args:
        note: Called with a sentence about each step that is done.
        progress: Called with a word for the work, the records that are done, and all records.
        plan: The amounts.
        keep: A new or empty directory to work in, and to leave as it is at the end.

    Raises:
        ConfigError: The directory cannot be used.
        StreamrecError: Something did not work.
    """
    begun = time.perf_counter()
    with _directory(keep) as directory:
        bucket = directory / "buckets" / BUCKET
        bucket.mkdir(parents=True)
        with start_store(directory, plan) as store:
            # Written while the store's process starts, for which ready() waits.
            total = write_shards(bucket, plan, lambda done: progress("writing", done, plan.records))
            endpoint = store.ready()["endpoint"]
            note(
                f"wrote {plan.records:,} JPEG records, {size(total)}, into {plan.shards} "
                f"shards, behind {endpoint} with {1e3 * plan.latency:.0f} ms to the first byte"
            )
            # The feeder is closed first: that ends whatever a rank may wait for.
            with (
                ThreadPoolExecutor(plan.ranks, "rank") as threads,
                start_feeder(directory, plan, endpoint) as feeder,
            ):
                address = f"{feeder.ready()['listen'][0]}/pictures"
                note(f"started a feeder, process {feeder.process.pid}, at {address}")
                ranks, started = _stream(threads, address, plan, progress)
    return _summary(plan, ranks, started, begun)


@contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with temporary_directory("the demo") as place:
            yield place
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
        used = any(keep.iterdir())
    except OSError as error:
        raise ConfigError(f"{keep}: {error.strerror}; name a new directory") from None
    if used:
        raise ConfigError(f"{keep} is not empty; name a new directory")
    yield absolute(keep)


def _stream(
    threads: ThreadPoolExecutor,
    address: str,
    plan: DemoPlan,
    progress: Callable[[str, int, int], None],
) -> tuple[list[DemoRank], float]:
    """Let all ranks take their batches; return them, and the time at which they began."""
    images, stopping = sample_pictures(), threading.Event()
    ranks = [
        DemoRank(address, number, plan, ReceivedRecords(plan, images), stopping)
        for number in range(plan.ranks)
    ]
    started = time.perf_counter()
    try:
        pending = {threads.submit(rank.run) for rank in ranks}
        while pending:
            done, pending = wait(pending, PROGRESS_SECONDS, FIRST_EXCEPTION)
            # Now, so that a rank that failed ends the demo and not only its own thread.
            for future in done:
                future.result()
            records = sum(rank.received.records for rank in ranks)
            progress("streaming", records, plan.records * plan.epochs)
    finally:
        # In any case: the threads are joined after this, and would wait for ranks that go on.
        stopping.set()
    return ranks, started


def _summary(plan: DemoPlan, ranks: Sequence[DemoRank], started: float, begun: float) -> Summary:
    counted = [rank.received for rank in ranks]
    counts = sum(received.counts for received in counted)
    records = sum(received.records for received in counted)
    nbytes = sum(received.bytes for received in counted)
    took = max(rank.finished for rank in ranks) - started
    return Summary(
        records=records,
        bytes=nbytes,
        epochs=plan.epochs,
        ranks=plan.ranks,
        shards=plan.shards,
        first_batch_seconds=round(max(rank.first_batch or 0.0 for rank in ranks), 3),
        stream_seconds=round(took, 3),
        megabytes_per_second=round(nbytes / 1e6 / took, 1),
        records_per_second=round(records / took, 1),
        resumed_at_step=ranks[plan.stopped_rank].resumed_at,
        lost=int(np.count_nonzero(counts == 0)),
        repeated=int(np.maximum(counts - 1, 0).sum()),
        damaged=sum(received.damaged for received in counted),
        seconds=round(time.perf_counter() - begun, 2),
        kernel=kernel.implementation,
        version=__version__,
    )
