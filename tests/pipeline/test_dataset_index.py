from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections import Counter, deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import settings as effort
from hypothesis import strategies as st

import streamrec as sr
from streamrec.errors import (
    CorruptLength,
    DataError,
    MalformedIndex,
    ObjectNotFound,
    StaleIndex,
    StoreError,
    StoreUnavailable,
)
from streamrec.formats.shards.index import LARGEST, Index
from streamrec.formats.shards.tfrecord import frame
from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.dataset_opening import read_index
from streamrec.stores.base.protocol import ObjectInfo
from tests.pipeline import user_functions
from tests.pipeline.scripted_store import ScriptedStore
from tests.pipeline.small_datasets import contents, receive_all, settings_of, write, write_index
from tests.plan.record_orders import index_of
from tests.support import examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.formats.shards.index import ShardEntry

SHARDS = ((5,) * 9, (5,) * 4)


def read(source: str | list[str], **values: Any) -> list[bytes]:
    async def main() -> list[bytes]:
        settings = settings_of(source, **{"batch_size": 4, "lanes": 1, "index": True, **values})
        dataset = await Dataset.open(settings)
        try:
            return contents(await receive_all(dataset))
        finally:
            await dataset.aclose()

    return asyncio.run(main())


def indexed(tmp_path: Path) -> str:
    source = write(tmp_path, SHARDS)
    write_index(source, 40)
    return source


def test_named_shards_take_their_sizes_from_the_index(tmp_path: Path) -> None:
    indexed(tmp_path)
    names = [f"{tmp_path}/part-0000{i}.tfrecord" for i in (1, 0)]
    assert len(read(names)) == 13


async def stored_bytes(source: list[str], **values: Any) -> int | None:
    dataset = await Dataset.open(settings_of(source, lanes=1, **values))
    await dataset.aclose()
    return dataset.stored_bytes


def test_the_bytes_of_named_shards_are_known_from_the_index_alone(tmp_path: Path) -> None:
    indexed(tmp_path)
    paths = sorted(tmp_path.glob("*.tfrecord"))
    names = [str(path) for path in paths]
    assert asyncio.run(stored_bytes(names)) is None
    sizes = sum(path.stat().st_size for path in paths)
    assert asyncio.run(stored_bytes(names, index=True)) == sizes


def test_an_index_elsewhere(tmp_path: Path) -> None:
    source = indexed(tmp_path)
    (found,) = tmp_path.glob("*.streamrec-index")
    elsewhere = tmp_path / "elsewhere"
    found.rename(elsewhere)
    assert len(read(source, index=str(elsewhere))) == 13
    with pytest.raises(ObjectNotFound, match=r"part\.streamrec-index: there is no index; write"):
        read(source)


def test_what_is_no_shard_is_told_before_its_missing_index(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="this is a directory; name its shards"):
        read(str(tmp_path))
    with pytest.raises(ObjectNotFound, match="there is no such file"):
        read(f"{tmp_path}/part-7")
    (tmp_path / "empty").touch()
    with pytest.raises(ObjectNotFound, match="there is no index"):
        read(f"{tmp_path}/empty")


def test_shards_that_the_index_knows_may_be_left_out(tmp_path: Path) -> None:
    indexed(tmp_path)
    (found,) = tmp_path.glob("*.streamrec-index")
    assert len(read(f"{tmp_path}/part-00000*", index=str(found))) == 9


@pytest.mark.parametrize("named", [False, True])
def test_a_shard_that_has_changed_is_named(tmp_path: Path, named: bool) -> None:
    source = indexed(tmp_path)
    path = tmp_path / "part-00001.tfrecord"
    path.write_bytes(path.read_bytes() + frame(b"more"))
    sources = [f"{tmp_path}/part-0000{i}.tfrecord" for i in (0, 1)] if named else source
    words = (
        r"part-00001.tfrecord.*: the index is stale: the shard has 104 bytes, and had 84 .*again"
    )
    with pytest.raises(StaleIndex, match=words):
        read(sources)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("mode", [{}, {"shuffle": True, "shuffle_window": 50}])
def test_other_records_of_the_same_sizes_are_named(
    tmp_path: Path, named: bool, mode: dict[str, Any]
) -> None:
    source = indexed(tmp_path)
    path = tmp_path / "part-00001.tfrecord"
    records = [bytes(record)[::-1] for record in sr.read_records(path)]
    path.write_bytes(b"".join(map(frame, records)))
    sources = [f"{tmp_path}/part-0000{i}.tfrecord" for i in (0, 1)] if named else source
    with pytest.raises(
        StaleIndex, match=r"part-00001.tfrecord.*: the index is stale: record \d+ differs"
    ):
        read(sources, **mode)


def test_the_same_bytes_in_a_file_of_another_time_are_read(tmp_path: Path) -> None:
    source = indexed(tmp_path)
    os.utime(tmp_path / "part-00001.tfrecord", ns=(1, 1))
    assert len(read(source)) == 13


@pytest.mark.parametrize("named", [False, True])
def test_an_index_of_the_version_with_etags_holds_for_them_alone(
    tmp_path: Path, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = indexed(tmp_path)
    (found,) = tmp_path.glob("*.streamrec-index")
    index = Index.parse(found.read_bytes(), url="index")
    old = Index(tuple(replace(entry, etag="another", crcs=[0]) for entry in index.entries))
    monkeypatch.setattr(Index, "parse", lambda *_, **__: old)
    sources = [f"{tmp_path}/part-0000{i}.tfrecord" for i in (0, 1)] if named else source
    with pytest.raises(StaleIndex, match=r"part-00000.tfrecord.*: the index is stale: .*version"):
        read(sources)


@pytest.mark.parametrize("at", [42, 54, 62])
def test_a_flipped_byte_in_a_chunks_first_record_is_damage(tmp_path: Path, at: int) -> None:
    source = indexed(tmp_path)
    path = tmp_path / "part-00001.tfrecord"
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError):
        read(source)
    assert len(read(source, on_corrupt="skip", corrupt_budget=1)) == 13


def test_a_shard_that_is_new_is_named(tmp_path: Path) -> None:
    source = indexed(tmp_path)
    (tmp_path / "part-00002.tfrecord").write_bytes(frame(b"new"))
    with pytest.raises(StaleIndex, match=r"part-00002.tfrecord: the index has no shard"):
        read(source)


def test_a_second_dataset_of_the_pattern_is_counted_and_named(tmp_path: Path) -> None:
    source = indexed(tmp_path)
    for number in range(2, 5):
        (tmp_path / f"part-0000{number}.tfrecord").write_bytes(frame(b"of another dataset"))
    says = (
        "part-00002.tfrecord: 3 shards of the source are not in the index, such as "
        "part-00002.tfrecord and part-00003.tfrecord; if the source names shards of another dataset"
    )
    with pytest.raises(StaleIndex, match=re.escape(says)):
        read(source)


def test_records_that_end_elsewhere_than_indexed_are_noticed(tmp_path: Path) -> None:
    """The size has not changed, nor have the first records of chunks before it."""
    source = write(tmp_path, ((5, 30, 30), (5,)))
    write_index(source, 1)
    write(tmp_path, ((5, 29, 31), (5,)))
    (found,) = tmp_path.glob("*.streamrec-index")
    known = index_of(((5, 30, 30), (5,)), 1)
    entries = [replace(e, name=f"part-0000{i}.tfrecord") for i, e in enumerate(known.entries)]
    found.write_bytes(type(known)(tuple(entries)).encode())
    with pytest.raises(StaleIndex, match=r"part-00000.tfrecord: the index says that record 2"):
        read(source, shuffle=True, shuffle_window=50)


def test_what_is_no_index_is_refused(tmp_path: Path) -> None:
    source = indexed(tmp_path)
    with pytest.raises(
        MalformedIndex, match=r"part-00000.tfrecord: the object does not begin like"
    ):
        read(source, index=str(tmp_path / "part-00000.tfrecord"))


DATA = index_of(SHARDS, 40).encode()
OBJECTS = [ObjectInfo(f"s3://b/00{i}") for i in range(2)]


def load(faults: list[StoreError | tuple[int, StoreError] | None]) -> ScriptedStore:
    async def main() -> ScriptedStore:
        store = ScriptedStore({"i": DATA}, piece=11, faults=deque(faults))
        index = await read_index(settings_of("x"), "i", store, OBJECTS)  # type: ignore[arg-type]
        assert index.records == 13
        return store

    return asyncio.run(main())


def test_an_index_takes_one_request() -> None:
    assert load([]).asked == [("i", 0, LARGEST + 1, None)]


def test_what_breaks_off_goes_on_at_its_last_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrec.flow.retry.Backoff.next", lambda *_: 0)
    gone = StoreUnavailable("gone")
    assert load([gone, (20, gone)]).asked == [
        ("i", 0, LARGEST + 1, None),
        ("i", 0, LARGEST + 1, None),
        ("i", 20, LARGEST + 1, '"v1"'),
    ]


def test_what_will_not_pass_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrec.flow.retry.Backoff.next", lambda self, *_: _count(self))
    with pytest.raises(StoreUnavailable, match="gone") as caught:
        load([StoreUnavailable("gone")] * 99)
    assert caught.value.offset == 0


def _count(backoff: Any) -> float:
    backoff.attempt += 1
    return 0.0


@pytest.mark.parametrize("wrong", [-1, 1])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"shuffle": True, "shuffle_window": 50},
        {"on_corrupt": "skip", "corrupt_budget": 10},
        {"filter": user_functions.is_short},
    ],
    ids=["in order", "shuffled", "skip", "filter"],
)
def test_another_number_of_records_than_indexed_is_noticed(
    tmp_path: Path, wrong: int, more: dict[str, Any]
) -> None:
    """All bytes are read, so none of their records may be lost."""
    source = write(tmp_path, ((5, 29, 31), (5, 5)))
    write_index(source, 1000)
    (found,) = tmp_path.glob("*.streamrec-index")
    entries = Index.parse(found.read_bytes(), url="index").entries
    changed = [replace(entries[0], records=entries[0].records + wrong), *entries[1:]]
    found.write_bytes(Index(tuple(changed)).encode())
    with pytest.raises(StaleIndex, match=r"part-00000.tfrecord: the index says that record [24]"):
        read(source, **more)


def seek_to_a_chunk(tmp_path: Path, change: Callable[[ShardEntry], ShardEntry]) -> list[bytes]:
    """Read on from the third of six chunks of two records, of which the index says something."""
    source = write(tmp_path, ((20,) * 12,))
    write_index(source, 70)
    (found,) = tmp_path.glob("*.streamrec-index")
    (entry,) = Index.parse(found.read_bytes(), url="index").entries
    assert list(entry.first_records) == [0, 2, 4, 6, 8, 10]
    found.write_bytes(Index((change(entry),)).encode())
    with sr.open(source, index=True, batch_size=2, lanes=1, engine="thread") as stream:
        stream.seek(step=2)
        return [bytes(record) for batch in stream for record in batch.records]


@pytest.mark.parametrize("by", [-16, -1, 1, 16])
def test_a_seek_to_where_no_record_begins_is_noticed(tmp_path: Path, by: int) -> None:
    assert len(seek_to_a_chunk(tmp_path / "intact", lambda entry: entry)) == 8

    def moved(entry: ShardEntry) -> ShardEntry:
        begins = list(entry.begins)
        begins[2] += by
        return replace(entry, begins=begins)

    with pytest.raises(StaleIndex, match=f"record 4 begins at byte {4 * 36 + by}, and no intact"):
        seek_to_a_chunk(tmp_path / "moved", moved)


def test_a_seek_to_a_damaged_length_tells_of_the_damage(tmp_path: Path) -> None:
    """The bytes behind it prove that a record begins there, as the index says."""

    def damage(entry: ShardEntry) -> ShardEntry:
        (shard,) = tmp_path.glob("*.tfrecord")
        data = bytearray(shard.read_bytes())
        data[4 * 36] ^= 1
        shard.write_bytes(data)
        return entry

    with pytest.raises(CorruptLength) as caught:
        seek_to_a_chunk(tmp_path, damage)
    assert (caught.value.offset, caught.value.record) == (4 * 36, 4)


UNEVEN = ((5, 29, 31, 7, 5), (5, 5, 8), (40,) * 6)
MODES: list[dict[str, Any]] = [
    {},
    {"shuffle": True, "shuffle_window": 50},
    {"on_corrupt": "skip", "corrupt_budget": 10},
]


@effort(max_examples=examples(60))
@given(
    st.integers(0, 2),
    st.integers(0, 14),
    st.sampled_from([-21, -1, 1, 21]),
    st.integers(0, 2),
    st.sampled_from([1, 3]),
)
def test_an_index_with_one_wrong_number_loses_nothing(
    shard: int, field: int, by: int, mode: int, lanes: int
) -> None:
    """Whatever the number is: it is noticed, or makes no difference."""
    with tempfile.TemporaryDirectory() as directory:
        reads_right(Path(directory), shard, lanes, mode, lambda entry: changed(entry, field, by))


@effort(max_examples=examples(40))
@given(
    st.integers(0, 2),
    st.integers(0, 4),
    st.sampled_from([-1, 1, 2]),
    st.integers(0, 2),
    st.sampled_from([1, 2, 3, 5]),
)
@example(shard=2, chunk=0, by=1, mode=0, lanes=5)  # a lane ends within the chunk
def test_an_index_that_miscounts_one_chunk_alone_neither_loses_nor_repeats(
    shard: int, chunk: int, by: int, mode: int, lanes: int
) -> None:
    """The numbers behind the chunk follow, so that all of the index agrees with itself."""
    with tempfile.TemporaryDirectory() as directory:
        reads_right(Path(directory), shard, lanes, mode, lambda entry: longer(entry, chunk, by))


def reads_right(
    directory: Path, shard: int, lanes: int, mode: int, change: Callable[[ShardEntry], ShardEntry]
) -> None:
    """Require all records, or an error, with a changed entry of a shard."""
    source = write(directory, UNEVEN)
    write_index(source, 60)
    (found,) = directory.glob("*.streamrec-index")
    whole = Counter(read(source))
    entries = list(Index.parse(found.read_bytes(), url="index").entries)
    entries[shard] = change(entries[shard])
    found.write_bytes(Index(tuple(entries)).encode())
    with suppress(StaleIndex, MalformedIndex):
        assert Counter(read(source, lanes=lanes, **MODES[mode])) == whole


@pytest.mark.parametrize("mode", MODES)
def test_records_that_an_index_does_not_count_are_noticed_in_later_ranges(
    tmp_path: Path, mode: dict[str, Any]
) -> None:
    """A run that ends with the last counted record never sees the ranges behind it."""
    with sr.TFRecordWriter(tmp_path / "long-00000-of-00001.tfrecord") as writer:
        writer.write_many(bytes(100_000) for _ in range(200))
    source = str(tmp_path / "long-*.tfrecord")
    write_index(source, 1 << 30)
    (found,) = tmp_path.glob("*.streamrec-index")
    entries = Index.parse(found.read_bytes(), url="index").entries
    found.write_bytes(Index((replace(entries[0], records=150),)).encode())
    with pytest.raises(StaleIndex, match="record 150 begins at byte 20003200"):
        read(source, **{**mode, "memory_budget": "64MiB", "shuffle_window": "1MiB"})


def changed(entry: ShardEntry, field: int, by: int) -> ShardEntry:
    """Return an entry in which one number is another."""
    if field < 2:
        name = ("size", "records")[field]
        return replace(entry, **{name: getattr(entry, name) + by})
    name = ("begins", "first_records", "crcs")[field % 3]
    numbers = getattr(entry, name).copy()
    numbers[field // 3 % len(numbers)] += by
    return replace(entry, **{name: numbers})


def longer(entry: ShardEntry, chunk: int, by: int) -> ShardEntry:
    """Return an entry in which one chunk has more records, and all else follows from that."""
    firsts = list(entry.first_records)
    chunk %= len(firsts)
    firsts[chunk + 1 :] = [first + by for first in firsts[chunk + 1 :]]
    return replace(entry, first_records=firsts, records=entry.records + by)
