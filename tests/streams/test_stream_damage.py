"""Damaged shards in whole streams: in every mode, a feeder included, and kept in remote stores."""

from __future__ import annotations

import contextlib
import gzip
import json
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pytest

import streamrec as sr
from streamrec.devstore import DevStore, FaultRule
from streamrec.errors import (
    CorruptBudgetExceeded,
    CorruptCompression,
    CorruptLength,
    CorruptRecord,
    DataError,
    ObjectNotFound,
    StoreError,
    TruncatedShard,
)
from streamrec.formats.examples.example import Example
from streamrec.formats.shards.tfrecord import frame
from tests.feeder.support import serving
from tests.pipeline.small_datasets import contents, identities, settings_of
from tests.streams.test_stream_state import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streamrec.pipeline.batch.batch import Batch

PAYLOADS = [[b"%d/%d " % (shard, i) * 5 for i in range(9)] for shard in range(3)]
DAMAGED = [(0, 2), (1, 0), (2, 8)]
"""Shard and record of each payload that is not what its CRC says."""
VALUES: dict[str, Any] = {
    "batch_size": 4,
    "lanes": 3,
    "shuffle": True,
    "shuffle_window": 600,
    "corrupt_budget": 3,
    "memory_budget": "32MiB",
    "max_concurrency": 8,
}
SIZE = 36
"""Bytes of a frame."""
NAMES = [
    f"s-{shard}.tfrecord.{SIZE * number:015}-{SIZE * number + SIZE:015}.tfrecord"
    for shard, number in DAMAGED
]


def damaged(shard: int) -> bytes:
    frames = list(map(frame, PAYLOADS[shard]))
    for number in (number for at, number in DAMAGED if at == shard):
        frames[number] = frames[number][:14] + b"?" + frames[number][15:]
    return b"".join(frames)


INTACT = {
    (shard, i): payload
    for shard, payloads in enumerate(PAYLOADS)
    for i, payload in enumerate(payloads)
    if (shard, i) not in DAMAGED
}


@pytest.fixture(params=["process", "thread", "loop", "feeder", "feeder, loop"])
def mode(request: pytest.FixtureRequest) -> Iterator[Mode]:
    with contextlib.ExitStack() as stack:
        yield Mode(request.param, stack)


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "data").mkdir()
    for shard in range(3):
        (tmp_path / f"data/s-{shard}.tfrecord").write_bytes(damaged(shard))
    return f"{tmp_path}/data/s-*.tfrecord"


def rows(batches: list[Batch]) -> list[tuple[tuple[int, int], bytes | None]]:
    """Every row: where it is from, and its bytes if it is there."""
    masks = [np.ones(len(b), bool) if b.mask is None else b.mask for b in batches]
    there = np.concatenate(masks).tolist()
    each = zip(identities(batches), contents(batches), there, strict=True)
    return [(origin, content if is_there else None) for origin, content, is_there in each]


class TestEveryMode:
    @pytest.mark.both_kernels
    def test_what_is_intact_comes(self, mode: Mode, source: str) -> None:
        stream = mode.open(source, **VALUES, on_corrupt="skip")
        batches = mode.take(stream)
        assert dict(rows(batches)) == INTACT
        assert all(batch.mask is None for batch in batches)
        if not mode.asynchronous:  # there the session is over with its loop
            assert stream.statistics()["skipped_records"] == 3
            assert stream.statistics()["skipped_bytes"] == 3 * SIZE

    def test_counted_runs_have_masks_and_resume_at_every_step(
        self, mode: Mode, source: str
    ) -> None:
        values = {**VALUES, "on_corrupt": "skip", "steps_per_epoch": 8}
        stream = mode.open(source, **values)
        whole = mode.take(stream)
        assert len(whole) == 8
        assert all(batch.mask is not None for batch in whole)
        found = rows(whole)
        assert {origin for origin, content in found if content is None} <= set(DAMAGED)
        assert all(content in (None, INTACT.get(origin)) for origin, content in found)
        for k in (1, 4, 7):
            stream.load_state_dict(json.loads(json.dumps(whole[k - 1].next_position.to_dict())))
            assert rows(mode.take(stream)) == found[4 * k :]

    @pytest.mark.both_kernels
    def test_the_quarantine_holds_the_rest(self, mode: Mode, source: str, tmp_path: Path) -> None:
        kept = tmp_path / "kept"
        values = {**VALUES, "on_corrupt": "quarantine", "quarantine": str(kept)}
        assert dict(rows(mode.take(mode.open(source, **values)))) == INTACT
        found = {path.name: path.read_bytes() for path in kept.iterdir()}
        assert sorted(found) == NAMES
        for (shard, number), name in zip(DAMAGED, NAMES, strict=True):
            check_object(found[name], shard, number)

    def test_one_too_many_ends_it_with_its_numbers(self, mode: Mode, source: str) -> None:
        stream = mode.open(source, **{**VALUES, "on_corrupt": "skip", "corrupt_budget": 2})
        with pytest.raises(CorruptBudgetExceeded, match="corrupt_budget=2") as caught:
            mode.take(stream)
        assert (caught.value.skipped_records, caught.value.skipped_bytes) == (3, 3 * SIZE)

    @pytest.mark.both_kernels
    def test_by_default_the_first_one_ends_it(self, mode: Mode, source: str) -> None:
        with pytest.raises(CorruptRecord) as caught:
            mode.take(mode.open(source, batch_size=4, lanes=3))
        assert caught.value.record in {number for _, number in DAMAGED}


def check_object(data: bytes, shard: int, number: int) -> None:
    """Check the record that the quarantine holds."""
    length = int.from_bytes(data[:8], "little")
    features = Example.FromString(data[12 : 12 + length]).features.feature
    assert features["url"].bytes_list.value[0].endswith(b"s-%d.tfrecord" % shard)
    assert features["record"].int64_list.value[0] == number
    assert features["is_one_record"].int64_list.value[0] == 1
    assert features["reason"].bytes_list.value[0].startswith(b"CorruptRecord: the CRC32C")
    assert features["bytes"].bytes_list.value[0] == damaged(shard)[SIZE * number :][:SIZE]


# -- remote quarantines ----------------------------------------------------------------------------


@pytest.fixture
def store() -> Iterator[DevStore]:
    with DevStore() as running:
        for shard in range(3):
            running.put(f"data/s-{shard}.tfrecord", damaged(shard))
        running.objects.create_bucket("kept")
        yield running


def kept_in(store: DevStore) -> dict[str, bytes]:
    names = store.objects.keys_of("kept")
    return {name: bytes(store.objects.open("kept", name).read(0, 1 << 20)) for name in names}


def of_the_store(store: DevStore, **values: Any) -> dict[str, Any]:
    return {
        **VALUES,
        "on_corrupt": "quarantine",
        "quarantine": "s3://kept/run 7/",
        "storage_options": store.storage_options,
        **values,
    }


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_in_a_bucket(store: DevStore, engine: Any) -> None:
    """The source's options serve for the same scheme; two runs write the same objects."""
    contents = []
    for _ in range(2):
        with sr.open("s3://data/s-*", engine=engine, **of_the_store(store)) as stream:
            assert dict(rows(list(stream))) == INTACT
            assert stream.statistics()["quarantined"] == 3
        contents.append(kept_in(store))
    assert contents[0] == contents[1]
    assert sorted(contents[0]) == [f"run 7/{name}" for name in NAMES]
    for (shard, number), name in zip(DAMAGED, NAMES, strict=True):
        check_object(contents[0][f"run 7/{name}"], shard, number)


def test_in_a_bucket_through_a_feeder(store: DevStore) -> None:
    with serving(settings_of("s3://data/s-*", **of_the_store(store))) as address:
        stream = sr.connect(f"{address}/data", rank=0, world_size=1)
        assert dict(rows(list(stream))) == INTACT
        stream.close()
    assert sorted(kept_in(store)) == [f"run 7/{name}" for name in NAMES]


def test_a_bucket_that_is_not_there_ends_the_run(store: DevStore) -> None:
    values = of_the_store(store, quarantine="s3://absent/x", batch_size=1, lanes=1, shuffle=False)
    with sr.open("s3://data/s-*", engine="thread", **values) as stream:
        before = [next(stream), next(stream)]
        with pytest.raises(StoreError, match="absent"):
            next(stream)
    assert identities(before) == [(0, 0), (0, 1)]


def test_a_bucket_that_takes_nothing_ends_the_run_before_what_follows(store: DevStore) -> None:
    store.faults = [FaultRule(method="PUT", status=403, code="AccessDenied")]
    values = of_the_store(store, batch_size=1, lanes=1, shuffle=False)
    with sr.open("s3://data/s-*", engine="thread", **values) as stream:
        before = [next(stream), next(stream)]
        state = stream.state_dict()
        with pytest.raises(StoreError):
            next(stream)
    assert identities(before) == [(0, 0), (0, 1)]
    store.faults = []
    with sr.open("s3://data/s-*", engine="thread", **values) as stream:
        stream.load_state_dict(state)
        assert dict(rows(before + list(stream))) == INTACT
    assert len(kept_in(store)) == 3


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()


@pytest.mark.parametrize("there", ["s3", "files"])
def test_in_memory_with_no_options_of_another_scheme(
    store: DevStore, memory: fsspec.AbstractFileSystem, source: str, there: str
) -> None:
    """The options of the source are for its own scheme; memory takes none."""
    values = of_the_store(store, quarantine="memory://kept/here", engine="thread")
    if there == "files":
        values["storage_options"] = {}
    with sr.open("s3://data/s-*" if there == "s3" else source, **values) as stream:
        assert dict(rows(list(stream))) == INTACT
    assert sorted(memory.ls("/kept/here", detail=False)) == [f"/kept/here/{n}" for n in NAMES]


def test_shards_in_memory(memory: fsspec.AbstractFileSystem) -> None:
    for shard in range(3):
        memory.pipe_file(f"/data/s-{shard}.tfrecord", damaged(shard))
    values = {**VALUES, "on_corrupt": "quarantine", "quarantine": "memory://aside"}
    with sr.open("memory://data/s-*", **values) as stream:
        assert dict(rows(list(stream))) == INTACT
    assert sorted(memory.ls("/aside", detail=False)) == [f"/aside/{name}" for name in NAMES]


WHOLE = frame(b"a record")
LENGTH_OFF = WHOLE[:9] + b"?" + WHOLE[10:]
PAYLOAD_OFF = WHOLE[:13] + b"?" + WHOLE[14:]


@pytest.mark.both_kernels
@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (WHOLE[:5], TruncatedShard),
        (WHOLE[:-1], TruncatedShard),
        (LENGTH_OFF, CorruptLength),
        (PAYLOAD_OFF, CorruptRecord),
        (gzip.compress(WHOLE[:5]), TruncatedShard),
        (gzip.compress(LENGTH_OFF), CorruptLength),
        (gzip.compress(PAYLOAD_OFF), CorruptRecord),
    ],
)
def test_damage_of_the_very_first_record_has_a_place(
    content: bytes, kind: type[DataError], tmp_path: Path
) -> None:
    (tmp_path / "s").write_bytes(content)
    with pytest.raises(kind) as caught:
        list(sr.open(str(tmp_path / "s"), engine="thread"))
    assert caught.value.fields() == {"url": str(tmp_path / "s"), "offset": 0, "record": 0}


@pytest.mark.both_kernels
@pytest.mark.parametrize("suffix", [".gz", ".zlib", ".zst"])
def test_what_is_no_compressed_stream_from_its_first_byte_on(suffix: str, tmp_path: Path) -> None:
    source = tmp_path / f"s{suffix}"
    source.write_bytes(b"no such stream at all")
    with pytest.raises(CorruptCompression) as caught:
        list(sr.open(str(source), engine="thread"))
    assert caught.value.fields() == {"url": str(source), "offset": 0}


@pytest.mark.parametrize("source", ["s", "s.gz"])
def test_a_shard_that_is_not_there(source: str, tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFound) as caught:
        list(sr.open(str(tmp_path / source), engine="thread"))
    assert caught.value.fields() == {"url": str(tmp_path / source), "offset": 0}
