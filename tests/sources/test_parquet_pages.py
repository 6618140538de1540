from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.sources.parquet_pages import pages_of

if TYPE_CHECKING:
    from pathlib import Path

pa: Any = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq: Any = pytest.importorskip("pyarrow.parquet")
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
    with pytest.raises(ValueError, match="a page ends behind its column"):
        list(pages_of(data[:5000], len(TEXTS)))
    with pytest.raises(ValueError, match="a page ends behind its column"):
        list(pages_of(data, len(TEXTS) + 1))


def test_structs_in_structs_have_a_limit() -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        list(pages_of(memoryview(b"\x1c" * 100), 1))
