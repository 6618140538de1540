from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.devstore import DevStore
from streamrec.errors import ConfigError, DataError, RecordTooLarge
from streamrec.sources.arrow import open_arrow
from streamrec.sources.arrow_batches import ArrowMessage, blocks_of, cut, message_at, row_sizes
from streamrec.sources.source import PIECE, Memory
from tests.sources.test_delimited import fail, records_of

if TYPE_CHECKING:
    from pathlib import Path


pa: Any = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
MESSAGES = pa.array(["x" * 5000, "y" * 3000] * 4)
TABLE = pa.table({"n": pa.array(range(8)), "t": MESSAGES, "d": MESSAGES.dictionary_encode()})
DICTIONARY, ROWS = 8000 + 12, 64 + 32_000 + 36 + 32
"""Bytes of the values and offsets, and of the indices."""


def reader_of(data: bytes) -> Any:
    return lambda at, size: memoryview(data)[at : at + size]


def write_messages(kind: str, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with new(sink, TABLE.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(TABLE)
        writer.write_table(TABLE)
    return bytes(sink.getvalue())


def messages(data: bytes, at: int = 0) -> list[ArrowMessage]:
    found = []
    while (message := message_at(reader_of(data), at)) is not None:
        found.append(message)
        at = message.end
    return found


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("kind", ["file", "stream"])
def test_what_messages_take(kind: str, compression: str | None, legacy: bool) -> None:
    data = write_messages(kind, compression=compression, use_legacy_format=legacy)
    found = messages(data, 8 if kind == "file" else 0)
    assert [message.has_rows for message in found] == [False, False, True, True]
    taken = [message.size_decompressed(reader_of(data)) for message in found]
    if compression is None:
        assert taken == [0, 0, 0, 0]
    else:
        assert taken[0] == 0
        assert abs(taken[1] - DICTIONARY) < 100
        assert [abs(size - ROWS) < 100 for size in taken[2:]] == [True, True]
    if kind == "file":
        dictionaries, batches = blocks_of(reader_of(data), len(data))
        assert [*dictionaries, *batches] == [message.begin for message in found[1:]]


@given(st.data())
def test_hostile_bytes(data: Any) -> None:
    good = bytearray(write_messages("file", compression="zstd"))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    read = reader_of(bytes(good))
    try:
        dictionaries, batches = blocks_of(read, len(good))
        for at in [8, *dictionaries, *batches]:
            message = message_at(read, at) if at >= 0 else None
            assert message is None or message.size_decompressed(read) >= 0
    except ValueError:
        pass


@given(st.binary(max_size=200))
def test_bytes_that_are_none(data: bytes) -> None:
    for read in (lambda: message_at(reader_of(data), 0), lambda: blocks_of(reader_of(data), 99)):
        with contextlib.suppress(ValueError):
            read()


MIB = 1 << 20
LONG = 100_000
MEMORY = Memory(64 * MIB)


def equal_rows(dtype: Any = None) -> Any:
    return pa.array([bytes(LONG)] * 500, dtype)


def written(path: Path, values: Any, kind: str = "file", **options: Any) -> str:
    table = pa.table({"a": values})
    new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with new(path, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return str(path)


@pytest.mark.parametrize("place", ["here", "store"])
@pytest.mark.parametrize("kind", ["file", "stream"])
def test_what_does_not_fit_is_refused(kind: str, place: str, tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    url = written(path, equal_rows(), kind, compression="zstd")
    assert path.stat().st_size < 100_000
    with DevStore() as store:
        options: dict[str, Any] = {}
        if place == "store":
            store.put("tables/x.arrow", path.read_bytes())
            url, options = "s3://tables/x.arrow", {"storage_options": store.storage_options}
        before = pa.total_allocated_bytes()
        with pytest.raises(RecordTooLarge, match=r"batch at byte \d+ takes 48 MiB.*--memory 96MiB"):
            records_of(open_arrow(url, memory=MEMORY, **options))
        assert pa.total_allocated_bytes() - before < MIB
        assert len(records_of(open_arrow(url, memory=Memory(128 * MIB), **options))) == 500


@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize(
    "values",
    [
        lambda row: pa.DictionaryArray.from_arrays(pa.array([0] * 500), row),
        lambda row: pa.RunEndEncodedArray.from_arrays(pa.array([500], pa.int32()), row),
        lambda _: equal_rows(pa.binary_view()),
    ],
    ids=["dictionary", "run", "view"],
)
def test_equal_rows_are_read_in_small_pieces(values: Any, kind: str, tmp_path: Path) -> None:
    url = written(tmp_path / "x.arrow", values(pa.array([bytes(LONG)])), kind)
    source = open_arrow(url, memory=MEMORY)
    before, found = pa.total_allocated_bytes(), 0
    for piece in source.pieces():
        assert piece.nbytes <= PIECE
        found += len(source.read(piece, fail).records)
        assert pa.total_allocated_bytes() - before <= MEMORY.most
    assert found == 500


def test_a_file_here_may_be_larger_than_the_memory(tmp_path: Path) -> None:
    """Its batches are mapped, and not read into memory."""
    url = written(tmp_path / "x.arrow", equal_rows())
    assert len(records_of(open_arrow(url, memory=Memory(8 * MIB)))) == 500


def test_places_that_a_file_tells_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    url = written(path, pa.array(["ab", "cd"]).dictionary_encode())
    data = path.read_bytes()
    indices = b"\0\0\0\0\1\0\0\0"
    at = data.rindex(indices)
    path.write_bytes(data[:at] + b"\0\0\0\0\xff\xff\0\0" + data[at + len(indices) :])
    with pytest.raises(DataError, match="Arrow cannot read it"):
        records_of(open_arrow(url))


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_damaged_bytes_are_an_error_or_other_values(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    values = pa.array([str(n % 7) for n in range(50)])
    url = written(path, values.dictionary_encode(), kind, compression="zstd")
    data = path.read_bytes()
    for at in range(0, len(data), max(1, len(data) // 80)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x5A]) + data[at + 1 :])
        try:
            records_of(open_arrow(url))
        except (DataError, ConfigError):
            continue


WORDS = ["a", None, "abc"]
LISTS = [["a"], None, ["abc", "d"]]


def runs(ends: list[int], values: Any) -> Any:
    return pa.RunEndEncodedArray.from_arrays(ends, pa.array(values))


@pytest.mark.parametrize(
    ("array", "sizes"),
    [
        (pa.array([1, None, 3], pa.int16()), [2, 2, 2]),
        (pa.array([True, None, False]), [1, 1, 1]),
        (pa.nulls(3), [0, 0, 0]),
        (pa.array([b"ab", None, b"cd"], pa.binary(2)), [2, 2, 2]),
        (pa.array(WORDS), [9, 8, 11]),
        (pa.array(WORDS, pa.large_string()), [9, 8, 11]),
        (pa.array(["a", None, "x" * 30], pa.string_view()), [9, 8, 38]),
        (pa.array(WORDS).dictionary_encode(), [9, 9, 11]),
        (pa.array([None] * 3, pa.dictionary(pa.int8(), pa.string())), [0, 0, 0]),
        (runs([1, 3], ["ab", "x"]), [10, 9, 9]),
        (pa.array(LISTS), [17, 8, 28]),
        (pa.array(LISTS, pa.list_view(pa.string())), [17, 8, 28]),
        (pa.array(LISTS, pa.list_(pa.dictionary(pa.int32(), pa.string()))), [17, 8, 28]),
        (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)), [8, 8, 8]),
        (pa.array([[[1], [2, 3]], None, [[]]]), [48, 8, 16]),
        (pa.array([{"a": 1, "b": "x"}, None, {"a": 2, "b": "xyz"}]), [17, 16, 19]),
        (pa.array([], pa.list_(pa.string())), []),
        (
            pa.FixedShapeTensorArray.from_storage(
                pa.fixed_shape_tensor(pa.int8(), [2]),
                pa.array([[1, 2]] * 3, pa.list_(pa.int8(), 2)),
            ),
            [2, 2, 2],
        ),
    ],
)
def test_sizes_of_rows(array: Any, sizes: list[int]) -> None:
    for begin in range(len(array) + 1):
        for size in range(len(array) + 1 - begin):
            part = array.slice(begin, size)
            assert row_sizes(part).tolist() == sizes[begin : begin + size]


def test_pieces_have_so_many_rows_and_bytes_at_most() -> None:
    texts = ["a" * 92] * 5 + ["b" * 292] + ["c" * 42] * 10
    batch = pa.record_batch({"a": pa.array(texts).dictionary_encode()})
    found = list(cut(batch, 7, 200))
    assert found == [
        (0, 2, 200), (2, 4, 200), (4, 5, 100), (5, 6, 300), (6, 7, 50), (7, 11, 200), (11, 14, 150),
        (14, 16, 100),
    ]  # fmt: skip
    assert list(cut(batch.slice(0, 0), 7, 200)) == []
