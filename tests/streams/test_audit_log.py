"""The audit log has what ``batch.origin`` says of every step, however the stream is read."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.devstore import DevStore, FaultRule
from streamrec.errors import AccessDenied, AuditFailed, ConfigError, StoreUnavailable
from streamrec.streams import audit_log
from streamrec.streams.audit_check import check_audit
from streamrec.streams.audit_log import MOST_WAITING, PartWriter, Waiting
from streamrec.streams.audit_part import Part, digest_of
from tests.cli.test_write_faults import disk
from tests.feeder.support import serving
from tests.pipeline.small_datasets import settings_of, write, write_index
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streamrec.pipeline.batch.batch import Batch
    from streamrec.streams.audit_part import LoggedStep
    from streamrec.streams.stream import Stream

SHARDS = ((9,) * 13, (9,) * 8, (), (9,) * 10)
ORDER: dict[str, Any] = {
    "batch_size": 4, "lanes": 8, "shuffle": True, "shuffle_window": 400, "seed": 3
}  # fmt: skip
BY_RECORD: dict[str, Any] = {**ORDER, "index": True, "remainder": "pad"}
THREAD: dict[str, Any] = {"engine": "thread", "rank": 0, "world_size": 1}
Told = dict[int, tuple[bytes, int]]
"""By step: the digest of the origin, and the number of masked records."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    source = write(tmp_path_factory.mktemp("data"), SHARDS)
    write_index(source, 50)
    return source


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def store() -> Iterator[DevStore]:
    with DevStore(keys={"one": "of us"}) as running:
        running.put("logs/other", b"")
        yield running


def told(batch: Batch) -> tuple[bytes, int]:
    """Return what a log must have of a batch."""
    named = batch.origin.shards >= 0
    mask = np.ones(len(batch), bool) if batch.mask is None else batch.mask
    shards, records = batch.origin.shards[named], batch.origin.records[named]
    return digest_of(shards, records), int((named & ~mask).sum())


def follow(stream: Stream, most: int = 1000) -> Told:
    """Take batches, and return what a log must have of each."""
    return {batch.next_position.step - 1: told(batch) for batch in sr.take(stream, most)}


def parts_of(log: Path) -> list[Part]:
    files = sorted(log.rglob("*.audit"), key=lambda path: path.stat().st_mtime_ns)
    return [Part.parse(path.read_bytes(), str(path)) for path in files]


def entries_of(log: Path) -> list[LoggedStep]:
    return [entry for part in parts_of(log) for one in part.stretches for entry in one.entries]


def logged(log: Path) -> Told:
    """Return what a log has of each step."""
    found = {}
    for entry in entries_of(log):
        count = 0 if entry.masked is None else int(entry.masked.counts.sum())
        if not entry.is_skipped:
            assert entry.step not in found
            found[entry.step] = entry.digest, count
    return found


@pytest.mark.parametrize(
    "values",
    [
        BY_RECORD,
        {**BY_RECORD, "epochs": 2, "shuffle": False, "remainder": "drop"},
        {**BY_RECORD, "exclude": [("part-00001.tfrecord", 3), ("part-00000.tfrecord", 0)]},
        ORDER,
        {**ORDER, "steps_per_epoch": 4, "epochs": 2, "exclude": [("part-00001.tfrecord", 3)]},
        {**ORDER, "length_buckets": 2},
        {**BY_RECORD, "length_buckets": 2},
        {**ORDER, "ordered": False, "shuffle": False},
    ],
)
def test_every_order(source: str, log: Path, values: dict[str, Any]) -> None:
    with sr.open(source, **THREAD, **values, audit=log) as stream:
        expected = follow(stream)
        expected |= follow(stream)  # the next run
    assert logged(log) == expected
    steps = [sum(len(one.entries) for one in part.stretches) for part in parts_of(log)]
    half = len(expected) // 2
    assert steps == [1, half - 1, half]  # the end of a run is written, too
    is_listed = "index" not in values or "length_buckets" in values
    assert all((entry.listed is not None) is is_listed for entry in entries_of(log))


@pytest.mark.parametrize("world_size", [2, 4])
def test_every_rank(source: str, log: Path, world_size: int) -> None:
    for rank in range(world_size):
        of: dict[str, Any] = {"engine": "thread", "rank": rank, "world_size": world_size}
        with sr.open(source, **BY_RECORD, **of, audit=log) as stream:
            expected = follow(stream)
        assert logged(log / f"rank-{rank:05}-of-{world_size:05}") == expected
    assert check_audit(str(log)).agrees


def test_a_mix_whose_weights_change(source: str, log: Path) -> None:
    names = {"a": source.replace("*", "00000"), "b": source.replace("*", "00003")}
    mix = {"a": (names["a"], 0.7), "b": (names["b"], 0.3)}
    with sr.mix(mix, **ORDER, **THREAD, steps_per_epoch=9, audit=log) as stream:
        expected = follow(stream, 2)
        stream.set_weights({"a": 0.1, "b": 0.9}, from_step=4)
        expected |= follow(stream)
    assert logged(log) == expected
    listed = [entry.listed for entry in entries_of(log)]
    assert {int(shard) for runs in listed if runs is not None for shard in runs.shards} == {0, 1}
    (rank,) = check_audit(str(log), reads=True).ranks
    assert (rank.read, rank.faults) == (9, [])


@pytest.mark.parametrize("engine", ["process", "thread", None])
def test_every_engine(source: str, log: Path, engine: Any) -> None:
    with sr.open(source, **BY_RECORD, rank=0, world_size=1, engine=engine, audit=log) as stream:
        expected = follow(stream)
    assert logged(log) == expected


@asynchronous
async def test_a_loop_of_asyncio_is_not_blocked(source: str, log: Path) -> None:
    expected = {}
    async with sr.open(source, **BY_RECORD, rank=0, world_size=1, audit=log) as stream:
        async for batch in stream:
            expected[batch.next_position.step - 1] = told(batch)
            stream.state_dict()
    assert logged(log) == expected


def test_a_feeder(source: str, log: Path) -> None:
    with serving(settings_of(source, **BY_RECORD)) as address:
        with sr.connect(f"{address}/data", rank=0, world_size=1, audit=log) as stream:
            expected = follow(stream)
    assert logged(log) == expected
    with pytest.raises(ConfigError, match="a feeder has read for this log"):
        check_audit(str(log))
    assert check_audit(str(log), {"source": source, "remainder": "pad"}).agrees


@pytest.mark.parametrize("values", [{"index": True}, {}])
@pytest.mark.parametrize("shuffle", [False, True])
def test_single_records(source: str, log: Path, values: dict[str, Any], shuffle: bool) -> None:
    order = {**ORDER, "batch_size": None, "shuffle": shuffle, **values}
    with sr.open(source, **order, **THREAD, audit=log) as stream:
        taken = [next(stream) for _ in range(7)]
        stream.skip(3)
        taken += [next(stream) for _ in range(2)]
        state = stream.state_dict()
    with sr.open(source, **order, **THREAD, audit=log) as stream:
        stream.load_state_dict(state)
        assert len(list(stream)) == 31 - 12
    steps = [(entry.step, entry.steps) for entry in entries_of(log) if not entry.is_skipped]
    covered = sorted(step for first, count in steps for step in range(first, first + count))
    assert covered == [*range(7), *range(10, 31)]
    (rank,) = check_audit(str(log), reads=True).ranks
    assert (rank.faults, rank.skipped) == ([], 3)
    assert rank.computed + rank.read == 28


def test_steps_that_are_skipped(source: str, log: Path) -> None:
    for values in (BY_RECORD, ORDER):
        with sr.open(source, **values, **THREAD, audit=log / str(len(values))) as stream:
            follow(stream, 2)
            stream.skip(3)
            stream.skip(0)
            expected = follow(stream, 1)
            stream.skip(1)
        entries = entries_of(log / str(len(values)))
        assert [(one.step, one.steps) for one in entries if one.is_skipped] == [(2, 3), (6, 1)]
        found = logged(log / str(len(values)))
        assert (set(found), found[5]) == ({0, 1, 5}, expected[5])
        assert check_audit(str(log / str(len(values))), reads=True).agrees


def test_batches_that_were_only_looked_at_are_not_logged(source: str, log: Path) -> None:
    with sr.open(source, **BY_RECORD, **THREAD, audit=log) as stream:
        expected = follow(stream, 2)
        stream.peek(3)
    assert logged(log) == expected


def test_an_interrupted_step_is_logged_once(source: str, log: Path) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with sr.open(source, **BY_RECORD, **THREAD, audit=log) as stream:
        expected = follow(stream, 2)
        with pytest.raises(KeyboardInterrupt):
            stream.__next__(interrupt)
        expected |= follow(stream)
    assert logged(log) == expected
    records = {**ORDER, "batch_size": None, "index": True}
    with sr.open(source, **records, **THREAD, audit=log / "records") as stream:
        next(stream)
        with pytest.raises(KeyboardInterrupt):
            stream.__next__(interrupt)
        list(stream)
    assert check_audit(str(log / "records")).ranks[0].again == 0


def test_moves_begin_new_stretches(source: str, log: Path) -> None:
    with sr.open(source, **BY_RECORD, **THREAD, audit=log) as stream:
        follow(stream, 2)
        stream.seek(step=5)
        follow(stream, 1)
        stream.set_epoch(2)
        follow(stream, 2)
    spans = [(one.step, one.end) for part in parts_of(log) for one in part.stretches]
    assert sorted(spans) == [(0, 1), (0, 2), (1, 2), (5, 6)]
    (rank,) = check_audit(str(log), rank=0).ranks
    assert (rank.computed, rank.again, rank.faults) == (5, 2, [])


# -- objects ---------------------------------------------------------------------------------------


def test_the_first_step_is_written_at_once(source: str, log: Path) -> None:
    with sr.open(source, **BY_RECORD, **THREAD, audit=log) as stream:
        follow(stream, 3)
    assert [len(part.stretches[0].entries) for part in parts_of(log)] == [1, 2]
    names = sorted(path.name[:31] for path in log.rglob("*.audit"))
    assert names == ["steps-000000000000-000000000000", "steps-000000000001-000000000002"]


@pytest.mark.parametrize(("limit", "most"), [("MOST_STEPS", 3), ("MOST_BYTES", 600)])
def test_an_object_has_so_many_steps(
    source: str, log: Path, limit: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, limit, most)
    with sr.open(source, **BY_RECORD, **THREAD, audit=log) as stream:
        follow(stream, 8)
    assert [sum(len(one.entries) for one in part.stretches) for part in parts_of(log)] == [
        1,
        3,
        3,
        1,
    ]


def test_a_state_has_the_log_written_but_not_each_time(
    source: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sr.open(source, **BY_RECORD, **THREAD, audit=log) as stream:
        follow(stream, 3)
        stream.state_dict()
        follow(stream, 1)
        monkeypatch.setattr(audit_log, "FRESH", 0.0)
        stream.state_dict()
        follow(stream, 1)
    assert [len(part.stretches[0].entries) for part in parts_of(log)] == [1, 3, 1]


def test_an_object_is_written_after_some_time(source: str, log: Path) -> None:
    now = [0.0]
    with sr.open(source, **BY_RECORD, **THREAD, audit={"url": log, "every": "20s"}) as stream:
        own = stream._cursor.log
        assert own is not None
        own._clock = lambda: now[0]
        follow(stream, 4)
        now[0] = 2000.0
        follow(stream, 1)
    assert [len(part.stretches[0].entries) for part in parts_of(log)] == [1, 3, 1]


def test_nothing_is_overwritten_when_steps_come_again(source: str, log: Path) -> None:
    for _ in range(2):
        with sr.open(source, **BY_RECORD, **THREAD, audit=log) as stream:
            follow(stream, 3)
    assert len(parts_of(log)) == 4
    report = check_audit(str(log))
    assert (report.ranks[0].again, report.agrees) == (3, True)


# -- ends ------------------------------------------------------------------------------------------


def test_a_stream_that_is_dropped_is_logged(source: str, log: Path) -> None:
    stream = sr.open(source, **BY_RECORD, **THREAD, audit=log)
    own = stream._cursor.log
    assert own is not None
    expected = follow(stream, 3)
    thread = own._writer._thread
    assert thread is not None
    del stream
    gc.collect()
    thread.join(60)
    assert logged(log) == expected
    assert own not in audit_log._OPEN


def test_the_end_of_a_program_waits_for_the_log(source: str, log: Path, store: DevStore) -> None:
    remote: dict[str, Any] = {"url": "s3://logs/run", "storage_options": store.storage_options}
    program = f"""
import asyncio, streamrec as sr
def opened(audit):
    return sr.open({source!r}, audit=audit, **{BY_RECORD!r}, **{THREAD!r})
async def main():
    async for batch in sr.take(local, 5):
        pass
local, remote = opened({str(log)!r}), opened({remote!r})
asyncio.run(main())
list(sr.take(remote, 4))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    assert logged(log).keys() == set(range(5))
    (rank,) = check_audit(remote["url"], storage_options=store.storage_options).ranks
    assert rank.computed == 4


def test_a_program_that_is_killed_loses_the_last_object_alone(source: str, log: Path) -> None:
    program = f"""
import os, streamrec as sr
from streamrec.streams import audit_log
audit_log.MOST_STEPS = 2
stream = sr.open({source!r}, audit={str(log)!r}, **{BY_RECORD!r}, **{THREAD!r})
list(sr.take(stream, 6))
while stream._cursor.log._writer._waiting:
    pass
os.kill(os.getpid(), 9)
"""
    ended = subprocess.run([sys.executable, "-c", program], check=False, timeout=120)
    assert ended.returncode == -9
    assert logged(log).keys() == set(range(5))
    assert check_audit(str(log)).agrees


def test_a_forked_child_has_a_log_of_its_own(source: str, log: Path) -> None:
    program = f"""
import os, streamrec as sr
stream = sr.open({source!r}, audit={str(log)!r}, **{BY_RECORD!r}, **{THREAD!r})
list(sr.take(stream, 3))
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
list(sr.take(stream, 1))
stream.close()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    steps = sorted(entry.step for entry in entries_of(log))
    assert steps == [0, 1, 2, 3, 3]


def test_a_log_that_cannot_be_written_ends_the_stream(source: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    stream = sr.open(source, **BY_RECORD, **THREAD, epochs=None, audit=tmp_path / "file" / "log")
    with pytest.raises(AuditFailed, match="the audit log cannot be written") as raised:
        for _ in stream:
            pass
    assert "rank-00000-of-00001/steps-000000000000-" in str(raised.value)
    (tmp_path / "file").unlink()
    expected = stream.state_dict()["step"]
    expected += len(follow(stream, 3))
    stream.close()
    assert logged(tmp_path / "file" / "log").keys() == set(range(expected))


@asynchronous
async def test_a_busy_store_is_asked_again(
    source: str, store: DevStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "DELAYS", (0.0,) * 9)
    store.faults = [FaultRule(path="audit", status=503, first=3)]
    options = {**store.storage_options, "config_kwargs": {"retries": {"max_attempts": 0}}}
    audit = {"url": "s3://logs/run", "storage_options": options}
    async with sr.open(source, **BY_RECORD, rank=0, world_size=1, audit=audit) as stream:
        assert len([batch async for batch in stream]) == 8
    assert store.faults.applied[0] == 3
    check = partial(check_audit, "s3://logs/run", storage_options=store.storage_options)
    report = await asyncio.to_thread(check)
    assert (report.agrees, report.ranks[0].computed) == (True, 8)


def test_credentials_that_are_refused_are_told_after_the_first_steps(
    source: str, store: DevStore
) -> None:
    options = {**store.storage_options, "key": "nobody"}
    audit = {"url": "s3://logs/run", "storage_options": options}
    stream = sr.open(source, **{**BY_RECORD, "epochs": None}, **THREAD, audit=audit)
    with pytest.raises(AuditFailed, match="AccessDenied: the store does not accept these cred"):
        for _ in stream:
            pass
    with pytest.raises(AuditFailed):
        stream.close()


def test_the_end_of_a_block_raises_it(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "DELAYS", ())
    (tmp_path / "file").touch()
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises(AuditFailed))
        stream = stack.enter_context(
            sr.open(source, **BY_RECORD, **THREAD, audit=tmp_path / "file" / "log")
        )
        next(stream)


def test_the_end_of_an_async_block_raises_it(source: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    async def read() -> None:
        log = tmp_path / "file" / "log"
        async with sr.open(source, **BY_RECORD, rank=0, world_size=1, audit=log) as stream:
            await anext(stream)

    with pytest.raises(AuditFailed):
        asyncio.run(read())


@asynchronous
async def test_an_asynchronous_loop_ends_where_the_log_cannot_be_written(
    source: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    values = {**BY_RECORD, "epochs": None}
    log = tmp_path / "file" / "log"
    stream = sr.open(source, **values, rank=0, world_size=1, audit=log)
    with pytest.raises(AuditFailed):
        async for _ in stream:
            pass
    (tmp_path / "file").unlink()
    await stream.aclose()
    assert 0 in logged(log)


def test_packs_are_refused(tmp_path: Path) -> None:
    with sr.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        writer.write_many({"x": [i] * 3} for i in range(20))
    features = {"x": sr.VarLenFeature("int64")}
    values: dict[str, Any] = {"batch_size": 2, "pack": sr.Pack(8), **THREAD}
    stream = sr.open(tmp_path / "x.tfrecord", features, **values, audit=tmp_path / "log")
    with pytest.raises(ConfigError, match="does not go with pack"):
        next(stream)
    stream.close()


class FakePart(Part):
    """A part of which only the bytes matter."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def encode(self) -> bytes:
        return self.data


class Store:
    """A failing that fails as long as it is told to."""

    def __init__(self) -> None:
        self.written: list[tuple[str, bytes]] = []
        self.failures: list[Exception] = []
        self.attempts = 0
        self.failed = threading.Event()

    def write(self, url: str, data: bytes) -> None:
        self.attempts += 1
        if self.failures:
            self.failed.set()
            raise self.failures.pop(0)
        self.written.append((url, data))


@pytest.fixture
def failing() -> Store:
    return Store()


@pytest.fixture
def ends() -> list[str]:
    return []


@pytest.fixture
def writer(failing: Store, ends: list[str], monkeypatch: pytest.MonkeyPatch) -> PartWriter:
    monkeypatch.setattr(audit_log, "DELAYS", (0.0, 0.0))
    return PartWriter(failing.write, lambda: ends.append("ended"))


def add(writer: PartWriter, *names: str) -> None:
    for name in names:
        writer.add(Waiting(name, FakePart(name.encode())))


def test_objects_are_written_in_their_order(
    writer: PartWriter, failing: Store, ends: list[str]
) -> None:
    add(writer, "a", "b", "c")
    writer.close()
    assert failing.written == [("a", b"a"), ("b", b"b"), ("c", b"c")]
    assert ends == ["ended"]
    writer.close()
    add(writer, "d")
    writer.close()
    assert failing.written[3:] == [("d", b"d")]


def test_what_may_pass_is_tried_again(writer: PartWriter, failing: Store) -> None:
    failing.failures = [StoreUnavailable("busy") for _ in range(2)]
    add(writer, "a")
    writer.close()
    assert (failing.attempts, failing.written) == (3, [("a", b"a")])


@pytest.mark.parametrize("failure", [StoreUnavailable("busy"), AccessDenied("no"), OSError("full")])
def test_a_failure_is_raised_and_the_object_kept(
    writer: PartWriter, failing: Store, failure: Exception
) -> None:
    failing.failures = [failure] * 20
    add(writer, "a")
    with pytest.raises(AuditFailed, match=f"{type(failure).__name__}: ") as raised:
        writer.close()
    assert raised.value.url == "a"
    assert failing.written == []
    # Tried for the object, and once more for the end; only what may pass is tried in between.
    assert failing.attempts == (6 if isinstance(failure, StoreUnavailable) else 2)
    failing.failures.clear()
    add(writer, "b")
    writer.close()
    assert [url for url, _ in failing.written] == ["a", "b"]


def test_a_check_raises_once_and_the_next_has_it_tried_again(
    writer: PartWriter, failing: Store
) -> None:
    """Nothing is tried between the two: what the user mends in that time counts."""
    failing.failures = [AccessDenied("no") for _ in range(9)]
    writer.check()
    add(writer, "a", "b")
    assert failing.failed.wait(60)
    with pytest.raises(AuditFailed, match="AccessDenied"):
        while True:  # the failure is noted a moment after it came
            writer.check()
    failing.failed.clear()
    add(writer, "c")
    assert not failing.failed.wait(0.1)
    assert failing.attempts == 1
    failing.failures.clear()
    writer.check()
    writer.close()
    assert [url for url, _ in failing.written] == ["a", "b", "c"]


def test_a_store_that_hangs_ends_the_stream(
    writer: PartWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "PATIENCE", 0.01)
    gate = threading.Event()
    monkeypatch.setattr(writer, "_write", lambda *_: gate.wait(60))
    add(writer, *map(str, range(MOST_WAITING)))
    writer.check()
    add(writer, "one more")
    with pytest.raises(AuditFailed, match="does not answer"):
        writer.check()
    thread = writer._thread
    with pytest.raises(AuditFailed, match="does not answer"):
        writer.close()
    gate.set()
    assert thread is not None
    thread.join(60)
    assert not writer._waiting


def test_an_end_waits_for_nobody(writer: PartWriter, failing: Store, ends: list[str]) -> None:
    add(writer, "a")
    thread = writer._thread
    writer.end()
    assert thread is not None
    thread.join(60)
    assert (failing.written, ends) == ([("a", b"a")], ["ended"])


def test_a_disk_that_is_full(source: str, tmp_path: Path) -> None:
    """The log of what was delivered is kept, and is written once there is room."""
    place = tmp_path / "disk"
    place.mkdir()
    values = {**BY_RECORD, "epochs": None}
    with disk(place, "16k"):
        (place / "other").write_bytes(bytes(16 << 10))
        stream = sr.open(source, **values, **THREAD, audit=place / "log")
        with pytest.raises(AuditFailed, match="No space left") as raised:
            for _ in stream:
                pass
        assert "mend that, and iterate again: the log of what was delivered is kept" in str(
            raised.value
        )
        (place / "other").unlink()
        expected = stream.state_dict()["step"] + len(follow(stream, 3))
        stream.close()
        assert logged(place / "log").keys() == set(range(expected))
