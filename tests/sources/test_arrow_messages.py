from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.sources.arrow_messages import ArrowMessage, blocks_of, message_at

pa: Any = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
WORDS = pa.array(["x" * 5000, "y" * 3000] * 4)
TABLE = pa.table({"n": pa.array(range(8)), "t": WORDS, "d": WORDS.dictionary_encode()})
DICTIONARY, ROWS = 8000 + 12, 64 + 32_000 + 36 + 32
"""Bytes of the values and offsets, and of the indices."""


def reader_of(data: bytes) -> Any:
    return lambda at, size: memoryview(data)[at : at + size]


def written(kind: str, **options: Any) -> bytes:
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
    data = written(kind, compression=compression, use_legacy_format=legacy)
    found = messages(data, 8 if kind == "file" else 0)
    assert [message.has_rows for message in found] == [False, False, True, True]
    taken = [message.decompressed(reader_of(data)) for message in found]
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
    good = bytearray(written("file", compression="zstd"))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    read = reader_of(bytes(good))
    try:
        dictionaries, batches = blocks_of(read, len(good))
        for at in [8, *dictionaries, *batches]:
            message = message_at(read, at) if at >= 0 else None
            assert message is None or message.decompressed(read) >= 0
    except ValueError:
        pass


@given(st.binary(max_size=200))
def test_bytes_that_are_none(data: bytes) -> None:
    for read in (lambda: message_at(reader_of(data), 0), lambda: blocks_of(reader_of(data), 99)):
        with contextlib.suppress(ValueError):
            read()
