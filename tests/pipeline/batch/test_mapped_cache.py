from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from streamrec.pipeline.batch.mapped_cache import MappedCache
from streamrec.stores.cache.piece_cache import PieceCache
from streamrec.stores.cache.pieces import Piece
from streamrec.stores.cache.process_memory import ProcessMemory
from streamrec.values.columns import Arrays, BytesColumn, Ragged, Sparse
from streamrec.values.record_rows import RecordRows
from tests.pipeline.batch.test_payload import same

MIB = 1 << 20
ONE: dict[str, Any] = {
    "array": np.arange(6, dtype=np.float32).reshape(1, 2, 3),
    "bool": np.array([True]),
    "bytes": BytesColumn.of([b"word"]),
    "strings": BytesColumn.of([b"a", b""], (2,)),
    "ragged": Ragged(np.arange(3), np.array([0, 3])),
    "arrays": Arrays.of([np.ones((2, 1), np.uint8)]),
    "sparse": Sparse(np.array([[0, 2]]), np.array([5]), (1, 4)),
}
EMPTY: dict[str, Any] = {
    "array": np.zeros((1, 0)),
    "bytes": BytesColumn.of([b""]),
    "ragged": Ragged(np.arange(0), np.array([0, 0])),
}


def cache(function: str = "f", form: object = None, pieces: PieceCache | None = None) -> Any:
    pieces = pieces or PieceCache(ProcessMemory(MIB), MIB)
    return MappedCache(pieces, Counter(), function, form)


def rows(*records: bytes) -> RecordRows:
    return RecordRows.of(records)


@pytest.mark.parametrize("columns", [ONE, EMPTY, {}], ids=["each kind", "no values", "no column"])
def test_what_was_kept_is_loaded(columns: dict[str, Any]) -> None:
    made = cache()
    assert made.load("0" * 32) is None
    made.keep("0" * 32, columns)
    found = made.load("0" * 32)
    assert list(found) == list(columns)
    for name, column in columns.items():
        same(found[name], column)
    assert made._counts == {"cached_mapped": 1}
    assert repr(made).startswith("<MappedCache in <PieceCache of")


def test_what_is_loaded_belongs_to_the_user() -> None:
    made = cache()
    made.keep("0" * 32, ONE)
    made.load("0" * 32)["array"][...] = 7
    assert made.load("0" * 32)["array"].tolist() == ONE["array"].tolist()


def test_keys_are_those_of_the_content() -> None:
    keys = cache().keys(rows(b"one", b"two", b"one"))
    assert keys[0] == keys[2] != keys[1]
    assert cache().keys(rows(b"two")) == [keys[1]]
    assert len(bytes.fromhex(keys[0])) == 16


@pytest.mark.parametrize("other", [("g", None), ("f", 1), ("f", {"a": 1})])
def test_another_function_or_form_has_other_keys(other: tuple[str, object]) -> None:
    assert cache(*other).keys(rows(b"one")) != cache().keys(rows(b"one"))


def test_a_column_that_cannot_travel_is_not_kept() -> None:
    made = cache()
    made.keep("0" * 32, {"x": np.array(["text"])})
    assert made.load("0" * 32) is None


@pytest.mark.parametrize(
    "data", [b"", b"\1", b"\0\0\0\0", b"\xff" * 80, b"\4\0\0\0abcd" + bytes(56)]
)
def test_a_damaged_piece_is_none(data: bytes) -> None:
    pieces = PieceCache(ProcessMemory(MIB), MIB)
    made = cache(pieces=pieces)
    pieces.keep(Piece("0" * 32, 0, len(data), len(data)), memoryview(data))
    assert made.load("0" * 32) is None
    assert not made._counts
