from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

import streamrec
from streamrec.formats.images.picture import OutputForm, Window
from streamrec.pipeline.batch import picture_cache
from streamrec.pipeline.batch.picture_cache import PictureCache
from streamrec.stores.cache.piece_cache import PieceCache
from streamrec.stores.cache.process_memory import ProcessMemory

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
    picture_cache.programs.cache_clear()
    yield Pictures()
    picture_cache.programs.cache_clear()


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
        (b"a picture", OutputForm(3, window=Window(0, 0, 2, 3)), (2, 3, 3)),
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
    for number, (module, name) in enumerate(
        [(streamrec, "__version__"), (picture_cache, "_version")], start=2
    ):
        monkeypatch.setattr(module, name, "0.0" if module is streamrec else lambda _: "0.0")
        picture_cache.programs.cache_clear()
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
    monkeypatch.setattr(picture_cache, "MOST", 17)
    assert [pictures.fill(), pictures.fill()] == [[1], [2]]
