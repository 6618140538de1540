from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from streamrec.formats.images.picture import CropWindow, OutputForm
from streamrec.pipeline.batch import record_caches as mapped_cache
from streamrec.pipeline.batch.record_caches import MappedCache, PictureCache
from streamrec.stores.cache.piece_cache import PieceCache
from streamrec.stores.cache.shelves import Piece, ProcessMemory
from streamrec.values.columns import Arrays, BytesColumn, Ragged, Sparse
from streamrec.values.record_rows import RecordRows
from tests.pipeline.batch.test_payload import same

if TYPE_CHECKING:
    from collections.abc import Iterator


MIB = 1 << 20
ENCODED = memoryview(b"a picture")
WANTED = OutputForm(3)


class Pictures:
    """A cache, and what was made because it lacked it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.cache = PictureCache(PieceCache(ProcessMemory(MIB), MIB), self.counts)
        self.made = 0

    def fill(
        self,
        encoded: memoryview = ENCODED,
        wanted: OutputForm = WANTED,
        shape: tuple[int, int, int] = (2, 3, 3),
    ) -> list[int]:
        target = np.zeros(shape, np.uint8)

        def make() -> None:
            self.made += 1
            target[...] = self.made

        self.cache.fill(encoded, wanted, target, make)
        return [int(value) for value in np.unique(target)]


@pytest.fixture
def pictures() -> Iterator[Pictures]:
    mapped_cache.programs.cache_clear()
    yield Pictures()
    mapped_cache.programs.cache_clear()


def test_a_picture_is_made_once(pictures: Pictures) -> None:
    assert [pictures.fill() for _ in range(3)] == [[1], [1], [1]]
    assert (pictures.made, pictures.counts["cached_pictures"]) == (1, 2)
    assert repr(pictures.cache).startswith("<PictureCache in <PieceCache of")


@pytest.mark.parametrize(
    ("encoded", "wanted", "shape"),
    [
        (b"another one", WANTED, (2, 3, 3)),
        (b"a picture", OutputForm(3, dct_method="INTEGER_ACCURATE"), (2, 3, 3)),
        (b"a picture", OutputForm(3, least=(4, 6)), (2, 3, 3)),
        (b"a picture", OutputForm(3, window=CropWindow(0, 0, 2, 3)), (2, 3, 3)),
        (b"a picture", WANTED, (3, 2, 3)),
    ],
)
def test_other_content_or_another_form_is_another_picture(
    pictures: Pictures, encoded: bytes, wanted: OutputForm, shape: tuple[int, int, int]
) -> None:
    assert pictures.fill() == [1]
    assert pictures.fill(memoryview(encoded), wanted, shape) == [2]
    assert pictures.fill() == [1]


def test_another_release_makes_its_own(pictures: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pictures.fill() == [1]
    values = {"__version__": "0.0", "_version": lambda _: "0.0"}
    for number, (name, value) in enumerate(values.items(), start=2):
        monkeypatch.setattr(mapped_cache, name, value)
        mapped_cache.programs.cache_clear()
        assert pictures.fill() == [number]


def test_what_cannot_be_made_is_not_kept(pictures: Pictures) -> None:
    def fail() -> None:
        raise ValueError("corrupt")

    for _ in range(2):
        with pytest.raises(ValueError, match="corrupt"):
            pictures.cache.fill(ENCODED, WANTED, np.zeros((2, 3, 3), np.uint8), fail)
    assert pictures.fill() == [1]


def test_a_picture_beyond_the_most_is_made_each_time(
    pictures: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_cache, "MOST", 17)
    assert [pictures.fill(), pictures.fill()] == [[1], [2]]


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
