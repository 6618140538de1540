from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.sources.parquet_pages import PageHeader, pages_of
from streamrec.sources.parquet_watch import PageWatch

pa: Any = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
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
