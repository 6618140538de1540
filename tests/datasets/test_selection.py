from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.datasets.selection import FEW, PlacedRecord, Selection, groups
from streamrec.errors import ConfigError, ObjectNotFound
from streamrec.formats.shards.tfrecord import frame

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.both_kernels


def write(path: Path, payloads: list[bytes]) -> str:
    path.write_bytes(b"".join(map(frame, payloads)))
    return str(path)


def read(selection: Selection) -> list[PlacedRecord]:
    found = list(groups(selection))
    assert all(found), "no group is empty"
    return [record for group in found for record in group]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    directory = tmp_path_factory.mktemp("shards")
    counts = {"a": 300, "b": 0, "c": 5}
    return tuple(
        write(directory / name, [f"{name}{i}".encode() for i in range(count)])
        for name, count in counts.items()
    )


@pytest.fixture(scope="module")
def short_shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Return shards whose names end with the number of their records."""
    directory = tmp_path_factory.mktemp("short")
    return tuple(
        write(directory / f"{name}{count}", [b"%d" % i for i in range(count)])
        for name, count in {"c": 1, "a": 3, "b": 2}.items()
    )


def everything(shards: tuple[str, ...]) -> list[PlacedRecord]:
    first, _, last = shards
    return [
        *(PlacedRecord(f"a{i}".encode(), first, i) for i in range(300)),
        *(PlacedRecord(f"c{i}".encode(), last, i) for i in range(5)),
    ]


def test_all(shards: tuple[str, ...]) -> None:
    assert read(Selection(shards)) == everything(shards)


@given(count=st.integers(1, 310) | st.none(), skip=st.integers(0, 310))
def test_some(shards: tuple[str, ...], count: int | None, skip: int) -> None:
    expected = everything(shards)[skip : None if count is None else skip + count]
    assert read(Selection(shards, count, skip=skip)) == expected


@given(skip=st.integers(0, 30), named=st.lists(st.integers(0, 2), min_size=1, max_size=5))
def test_shards_come_in_the_order_and_as_often_as_they_are_named(
    short_shards: tuple[str, ...], skip: int, named: list[int]
) -> None:
    urls = tuple(short_shards[k] for k in named)
    expected = [PlacedRecord(b"%d" % i, url, i) for url in urls for i in range(int(url[-1]))]
    skip %= len(expected)
    assert read(Selection(urls, skip=skip)) == expected[skip:]


def test_from_an_offset(shards: tuple[str, ...]) -> None:
    found = read(Selection(shards[:1], offset=len(frame(b"a0")) * 2))
    assert [record.payload for record in found[:2]] == [b"a2", b"a3"]


def test_from_the_end(shards: tuple[str, ...]) -> None:
    assert read(Selection(shards[2:], offset=5 * len(frame(b"c0")))) == []


def test_an_offset_into_several(shards: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="need one shard, but the source has 3"):
        read(Selection(shards, offset=1))


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFound):
        read(Selection((str(tmp_path / "none"),)))


def test_few_records_are_read_sparingly() -> None:
    few, many = (Selection(("x",), n).settings() for n in (FEW, FEW + 1))
    assert few.max_concurrency == 1
    assert many.max_concurrency == "auto"
    assert Selection(("x",)).settings().memory_budget == many.memory_budget


def test_the_reader_may_stop(shards: tuple[str, ...]) -> None:
    for group in groups(Selection(shards)):
        assert group[0].payload == b"a0"
        break
