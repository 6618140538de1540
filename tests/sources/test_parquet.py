from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.devstore import DevStore
from streamrec.errors import DataError, RecordTooLarge
from streamrec.sources.arrow import open_arrow
from streamrec.sources.parquet import HeldFile, PageWatch
from streamrec.sources.parquet_pages import PageHeader, pages_of
from streamrec.sources.source import PIECE, Memory
from tests.sources.test_delimited import fail, records_of

if TYPE_CHECKING:
    from pathlib import Path


pa: Any = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
HELD = bytes(range(100))


class Counted:
    """A source that counts the bytes that are read."""

    def __init__(self) -> None:
        self.file, self.bytes = pa.BufferReader(HELD), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def read_buffer(self, size: int) -> Any:
        self.bytes += size
        return self.file.read_buffer(size)


def test_a_part_is_requested_once() -> None:
    source = Counted()
    held = HeldFile(source)
    held.hold(20, 30)
    assert source.bytes == 30
    held.seek(20)
    assert bytes(held.read(10)) == HELD[20:30]
    assert bytes(held.read_at(45, 5)) == HELD[45:50]
    assert held.tell() == 30
    assert bytes(held.read(20)) == HELD[30:50]
    assert source.bytes == 30
    assert bytes(held.read(5)) == HELD[50:55]
    assert held.seek(-1, 2) == 99
    assert bytes(held.read(9)) == HELD[99:]
    assert source.bytes == 44


@pytest.mark.parametrize("part", [(0, 0), (0, 100), (30, 20)])
def test_arrow_reads_it_as_any_file(part: tuple[int, int], tmp_path: Path) -> None:
    held = HeldFile(pa.BufferReader(HELD))
    held.hold(*part)
    with pa.PythonFile(held, "r") as file:
        assert file.size() == len(HELD)
        file.seek(25)
        assert file.read(50) == HELD[25:75]
    assert held.closed


pq: Any = pytest.importorskip("pyarrow.parquet")


def column() -> tuple[bytes, int, int, int]:
    """Return a file, the bounds of its only column, and its values."""
    sink = pa.BufferOutputStream()
    rows = [b"%d" % (n % 50) * (n % 7) for n in range(2000)]
    options = {"data_page_size": 500, "write_batch_size": 50, "dictionary_pagesize_limit": 60}
    pq.write_table(pa.table({"a": pa.array(rows)}), sink, **options)
    data = sink.getvalue().to_pybytes()
    facts = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(0)
    begin = facts.dictionary_page_offset or facts.data_page_offset
    return data, begin, begin + facts.total_compressed_size, facts.num_values


DATA, BEGIN, END, VALUES = column()
PAGES = list(pages_of(memoryview(DATA)[BEGIN:END], VALUES))


def look(cuts: list[int], together: int = 100) -> list[tuple[PageHeader, int]]:
    """Give a watch the bytes cut at these places; return what it checked."""
    found: list[tuple[PageHeader, int]] = []
    watch = PageWatch(BEGIN, END, VALUES, together, lambda *seen: found.append(seen))
    bounds = sorted({0, len(DATA), *cuts})
    for at, stop in pairwise(bounds):
        watch.look(at, memoryview(DATA)[at:stop], lambda at, size: memoryview(DATA)[at:][:size])
    return found


def facts(pages: list[PageHeader]) -> list[tuple[Any, ...]]:
    return [(page.is_dictionary, page.size, page.values, page.stored) for page in pages]


@given(st.lists(st.integers(0, len(DATA)), max_size=60))
def test_every_page_is_seen_however_the_bytes_come(cuts: list[int]) -> None:
    assert len(PAGES) > 10
    assert facts([page for page, _ in look(cuts)]) == facts(PAGES)


def test_octet_by_octet() -> None:
    assert facts([page for page, _ in look(list(range(len(DATA))))]) == facts(PAGES)


@pytest.mark.parametrize("together", [1, 50, 51, 120, 100_000])
def test_the_bytes_of_pages_that_are_read_together(together: int) -> None:
    data = [page for page in PAGES if not page.is_dictionary]
    seen = [size for page, size in look([], together) if not page.is_dictionary]
    for k, size in enumerate(seen):
        # Whole pages before the last value that end behind its first companion.
        first = k
        while first and sum(page.values for page in data[first : k + 1]) < together:
            first -= 1
        assert size >= max(page.size for page in data[first : k + 1])
        assert size <= sum(page.size for page in data[max(0, first - 1) : k + 1])


def test_bytes_that_were_never_given_are_read() -> None:
    """Arrow may skip what it has no use for."""
    found: list[PageHeader] = []
    asked: list[int] = []

    def read(at: int, size: int) -> memoryview:
        asked.append(at)
        return memoryview(DATA)[at:][:size]

    watch = PageWatch(BEGIN, END, VALUES, 100, lambda page, _: found.append(page))
    watch.look(END - 1, memoryview(DATA)[END - 1 : END], read)
    assert facts(found) == facts(PAGES)
    assert asked[0] == BEGIN


def test_a_header_without_an_end() -> None:
    watch = PageWatch(0, 5, 1, 1, lambda *_: None)
    with pytest.raises(ValueError, match="has no end"):
        watch.look(0, memoryview(b"\x15\x15\x15\x15\x15"), lambda *_: memoryview(b""))


MIB = 1 << 20
LONG = 100_000
MEMORY = Memory(64 * MIB)
ENCODED: dict[str, dict[str, Any]] = {
    "dictionary": {},
    "plain": {"use_dictionary": False, "write_batch_size": 8},
    "prefixes": {"use_dictionary": False, "column_encoding": {"a": "DELTA_BYTE_ARRAY"}},
    "version 2": {"data_page_version": "2.0"},
}


def written(path: Path, values: Any, **options: Any) -> str:
    pq.write_table(pa.table({"a": values}), path, compression="zstd", **options)
    return str(path)


@pytest.mark.parametrize(
    ("encoded", "kind"),
    [
        *((encoded, pa.binary()) for encoded in ENCODED),
        ("dictionary", pa.large_binary()),
        ("dictionary", pa.binary(LONG)),
        ("plain", pa.binary(LONG)),
    ],
)
def test_equal_rows_are_read_in_small_pieces(encoded: str, kind: Any, tmp_path: Path) -> None:
    values = pa.array([bytes(LONG)] * 1000, kind)
    place = written(tmp_path / "x.parquet", values, **ENCODED[encoded])
    assert os.path.getsize(place) < 200_000  # noqa: PTH202 - a text
    source = open_arrow(place, memory=MEMORY)
    before = pa.total_allocated_bytes()
    found = 0
    for piece in source.pieces():
        assert piece.nbytes <= PIECE
        assert pa.total_allocated_bytes() - before <= MEMORY.most
        found += len(source.read(piece, fail).records)
    assert found == 1000


def test_growing_rows_come_in_batches_that_are_bounded(tmp_path: Path) -> None:
    """No number of rows that fits the short ones is right for the long ones behind them."""
    values = [b"a"] * 50_000 + [bytes(LONG)] * 400
    place = written(tmp_path / "x.parquet", pa.array(values), **ENCODED["plain"])
    source = open_arrow(place, memory=MEMORY)
    before, found = pa.total_allocated_bytes(), 0
    for piece in source.pieces():
        assert pa.total_allocated_bytes() - before <= MEMORY.most
        found += piece.batch.num_rows
    assert found == len(values)


@pytest.mark.parametrize(
    ("values", "options", "words"),
    [
        (
            pa.array([bytes(LONG)] * 1000),
            {"use_dictionary": False},
            r"a page of column 'a', row group 0, takes 95 MiB.*give --memory 191MiB",
        ),
        (
            pa.array([[0] * 2_000_000]),
            {},
            r"row 0 of row group 0, with a list of 2,000,000 .*, takes 23 MiB.*--memory 92MiB",
        ),
        (
            pa.array([["x" * LONG] * 200]),
            {},
            r"row 0 takes 19 MiB.*give --memory 77MiB",
        ),
        (
            pa.array([bytes(20 * MIB)], pa.binary(20 * MIB)),
            {},
            r"a row of row group 0 takes 20 MiB",
        ),
        (pa.array([b"", bytes(20 * MIB)]), {}, r"row 1 takes 20 MiB"),
    ],
)
def test_what_does_not_fit_is_refused(
    values: Any, options: Any, words: str, tmp_path: Path
) -> None:
    place = written(tmp_path / "x.parquet", values, **options)
    expected = records_of(open_arrow(place))
    before = pa.total_allocated_bytes()
    with pytest.raises(RecordTooLarge, match=words) as caught:
        records_of(open_arrow(place, memory=MEMORY))
    assert caught.value.url == place
    del caught
    assert pa.total_allocated_bytes() - before <= MEMORY.most
    assert records_of(open_arrow(place, memory=Memory(256 * MIB))) == expected


def test_a_store_is_asked_for_each_row_group_once(tmp_path: Path) -> None:
    rows = [os.urandom(1000) for _ in range(3000)]
    written(tmp_path / "x.parquet", pa.array(rows), row_group_size=1000)
    data = (tmp_path / "x.parquet").read_bytes()
    expected = records_of(open_arrow(str(tmp_path / "x.parquet")))
    with DevStore() as store:
        store.put("tables/x.parquet", data)
        source = open_arrow("s3://tables/x.parquet", storage_options=store.storage_options)
        assert records_of(source) == expected
        small = open_arrow(
            "s3://tables/x.parquet", storage_options=store.storage_options, memory=Memory(2 * MIB)
        )
        assert records_of(small) == expected  # a row group is more than its part
        bomb = written(tmp_path / "y.parquet", pa.array([bytes(LONG)] * 1000), use_dictionary=False)
        store.put("tables/y.parquet", (tmp_path / "y.parquet").read_bytes())
        there = open_arrow(
            "s3://tables/y.parquet", storage_options=store.storage_options, memory=MEMORY
        )
        with pytest.raises(RecordTooLarge, match="a page of column 'a'"):
            records_of(there)
        del bomb


@pytest.mark.parametrize("encoded", ENCODED)
def test_pages_of_a_large_row_group_in_a_store_are_looked_at(tmp_path: Path, encoded: str) -> None:
    """It is not held in memory, so its pages are met on their way."""
    rows = [os.urandom(999) for _ in range(8000)]
    bomb = [bytes(LONG)] * 600 if encoded == "plain" else []
    options = {**ENCODED[encoded], "row_group_size": 1 << 20}
    written(tmp_path / "x.parquet", pa.array(rows), **options)
    written(
        tmp_path / "y.parquet", pa.array([*rows, *bomb]), **{**options, "write_batch_size": 1024}
    )
    memory = Memory(16 * MIB)
    expected = records_of(open_arrow(str(tmp_path / "x.parquet"), memory=memory))
    with DevStore() as store:
        for name in ("x", "y"):
            store.put(f"tables/{name}.parquet", (tmp_path / f"{name}.parquet").read_bytes())

        def read(name: str) -> Any:
            place, options = f"s3://tables/{name}.parquet", store.storage_options
            return records_of(open_arrow(place, storage_options=options, memory=memory))

        assert read("x") == expected
        if bomb:
            with pytest.raises(RecordTooLarge, match=r"of column 'a', row group 0, takes .* MiB"):
                read("y")


def test_damaged_bytes_are_one_error(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    rows = [b"%d" % n for n in range(500)]
    written(path, pa.array(rows), write_page_checksum=True)
    data = path.read_bytes()
    expected = records_of(open_arrow(str(path)))
    for at in range(0, len(data), max(1, len(data) // 80)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x5A]) + data[at + 1 :])
        try:
            found = records_of(open_arrow(str(path)))
        except DataError:
            continue
        assert found == expected, at
