from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import DataError, RecordTooLarge
from streamrec.sources.arrow import open_arrow
from streamrec.sources.parquet_pages import pages_of, row_values
from streamrec.sources.source import Memory
from tests.sources.test_delimited import fail, records_of

if TYPE_CHECKING:
    from pathlib import Path


pa: Any = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq: Any = pytest.importorskip("pyarrow.parquet")
MIB = 1 << 20
MEMORY = Memory(64 * MIB)


def lengths(values: Any, **options: Any) -> list[int]:
    """Return the values of each row, as the levels of the pages tell them."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": values}), sink, **options)
    data = sink.getvalue()
    file = pq.ParquetFile(pa.BufferReader(data))
    column = file.metadata.row_group(0).column(0)
    begin = column.dictionary_page_offset or column.data_page_offset
    part = memoryview(data).cast("B")[begin : begin + column.total_compressed_size]
    deepest = file.metadata.schema.column(0).max_repetition_level
    found = row_values(part, list(pages_of(part, column.num_values)), column.compression, deepest)
    assert found is not None
    return [int(n) for n in found]


def leaves(row: Any) -> int:
    """Return the values of a row: an empty or missing list takes the place of one."""
    return sum(map(leaves, row)) or 1 if isinstance(row, list) else 1


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "gzip", "lz4", "brotli"])
def test_lengths_of_every_codec(codec: str, version: str) -> None:
    rows = [[1] * n for n in chain(range(300), (0, 7), [1] * 999)]
    found = lengths(
        pa.array(rows, pa.list_(pa.int64())),
        compression=codec,
        data_page_version=version,
        data_page_size=1000,
        write_batch_size=16,
    )
    assert found == [leaves(row) for row in rows]


LISTS = st.lists(st.none() | st.lists(st.none() | st.lists(st.integers(0, 3), max_size=40)))


@given(LISTS, st.sampled_from(["1.0", "2.0"]))
def test_lengths_of_lists_in_lists(rows: Any, version: str) -> None:
    kind = pa.list_(pa.list_(pa.int64()))
    found = lengths(pa.array(rows, kind), data_page_version=version, data_page_size=50)
    assert found == [leaves(row) for row in rows]


def skewed(path: Path, long: int, *, of: Any = np.int64, **options: Any) -> str:
    """Write many short lists, and one long one among them."""
    sizes = np.ones(100_000, np.int64)
    sizes[77_777] = long
    ends = np.concatenate([[0], np.cumsum(sizes)])
    values = np.zeros(ends[-1], of)
    table = pa.table({"a": pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values)})
    pq.write_table(table, path, compression="zstd", **options)
    return str(path)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_one_long_list_among_short_ones_is_refused(version: str, tmp_path: Path) -> None:
    place = skewed(tmp_path / "x.parquet", 3_000_000, data_page_version=version)
    before = pa.total_allocated_bytes()
    words = r"row 77777 of row group 0, with a list of 3,000,000 values in column 'a.list.element'"
    with pytest.raises(RecordTooLarge, match=f"{words}.*34 MiB.*--memory 138MiB") as caught:
        list(open_arrow(place, memory=MEMORY).pieces())
    assert caught.value.url == place
    del caught
    assert pa.total_allocated_bytes() - before <= MIB


def test_long_lists_side_by_side_are_read_in_pieces_that_are_bounded(tmp_path: Path) -> None:
    rows = [[0]] * 50_000 + [[0] * 50_000] * 100
    pq.write_table(pa.table({"a": pa.array(rows)}), tmp_path / "x.parquet", compression="zstd")
    source = open_arrow(str(tmp_path / "x.parquet"), memory=MEMORY)
    before, found = pa.total_allocated_bytes(), 0
    for piece in source.pieces():
        assert pa.total_allocated_bytes() - before <= MEMORY.most
        found += len(source.read(piece, fail).records)
    assert found == len(rows)


def test_levels_that_lie(tmp_path: Path) -> None:
    """Damaged levels are one error, or the same records."""
    place = skewed(tmp_path / "x.parquet", 1_500_000)
    memory = Memory(128 * MIB)
    data = (tmp_path / "x.parquet").read_bytes()
    assert len(records_of(open_arrow(place, memory=memory))) == 100_000
    for at in range(4, 200, 9):
        (tmp_path / "y.parquet").write_bytes(data[:at] + bytes([data[at] ^ 0x5A]) + data[at + 1 :])
        try:
            list(open_arrow(str(tmp_path / "y.parquet"), memory=Memory(16 * MIB)).pieces())
        except DataError:
            continue


TEXTS = ["x" * (n % 700) for n in range(3000)]


def column_of(path: Path, values: Any = TEXTS, **options: Any) -> tuple[Any, memoryview]:
    pq.write_table(pa.table({"a": values}), path, data_page_size=10_000, **options)
    column = pq.read_metadata(path).row_group(0).column(0)
    begin = column.dictionary_page_offset or column.data_page_offset
    data = memoryview(path.read_bytes())
    return column, data[begin : begin + column.total_compressed_size]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("encoding", [None, "PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_headers(version: str, compression: str, encoding: str | None, tmp_path: Path) -> None:
    options = {"column_encoding": {"a": encoding}} if encoding else {}
    column, data = column_of(
        tmp_path / "x",
        data_page_version=version,
        compression=compression,
        use_dictionary=encoding is None,
        write_page_checksum=True,
        **options,
    )
    pages = list(pages_of(data, len(TEXTS)))
    assert sum(page.values for page in pages if not page.is_dictionary) == len(TEXTS)
    assert [page.is_dictionary for page in pages] == [
        encoding is None, *[False] * (len(pages) - 1)
    ]  # fmt: skip
    assert {page.is_delta for page in pages} == {encoding == "DELTA_BYTE_ARRAY"}
    sizes = sum(page.size for page in pages)
    assert (
        0 < column.total_uncompressed_size - sizes < 2000 * len(pages)
    )  # headers, and in them the least and the largest


def test_a_dictionary_of_numbers(tmp_path: Path) -> None:
    _, data = column_of(tmp_path / "x", [1, 2] * 500)
    first, *_ = pages_of(data, 1000)
    assert first[:4] == (True, False, 16, 2)


@given(st.binary())
def test_bytes_that_are_no_header(data: bytes) -> None:
    try:
        for page in pages_of(memoryview(data), 10):
            assert page.size >= 0
            assert page.values >= 0
    except ValueError:
        pass


def test_a_column_that_ends_too_early(tmp_path: Path) -> None:
    _, data = column_of(tmp_path / "x")
    with pytest.raises(ValueError, match="a page ends after its column"):
        list(pages_of(data[:5000], len(TEXTS)))
    with pytest.raises(ValueError, match="a page ends after its column"):
        list(pages_of(data, len(TEXTS) + 1))


def test_structs_in_structs_have_a_limit() -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        list(pages_of(memoryview(b"\x1c" * 100), 1))
