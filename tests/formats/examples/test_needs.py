"""The limits of what a batch claims, which hold before memory is taken."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image as Pillow

from streamrec import kernel
from streamrec.errors import BatchTooLarge, ConfigError, DataError, PictureTooLarge
from streamrec.formats.examples.defaults import ValueRowIds
from streamrec.formats.examples.example import encode_example, encode_sequence_example
from streamrec.formats.examples.features import FeatureParser
from streamrec.formats.examples.image_spec import Image
from streamrec.formats.examples.needs import Claims, DecodeLimits
from streamrec.formats.examples.specs import FixedLenFeature, RaggedFeature, VarLenFeature
from streamrec.kernel.contract import fresh
from streamrec.values.record_rows import RecordRows

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20


def encoded(kind: str, height: int, width: int, **options: Any) -> bytes:
    """Return a black picture; a PNG has a transparent colour, so that Pillow decodes it."""
    if kind == "PNG":
        options["transparency"] = (1, 2, 3)
    file = io.BytesIO()
    Pillow.new("RGB", (width, height)).save(file, kind, **options)
    return file.getvalue()


class Parsing:
    """A parser with limits, which notes what it claims and what it allocates."""

    def __init__(self, features: Any, limits: DecodeLimits) -> None:
        self.claimed: list[int] = []
        self.allocated: list[int] = []
        self.at_once: list[int] = []
        self._claims = Claims(limits)
        self._parser = FeatureParser(
            features, allocate=self._allocate, share=self._share, claims=self._claims
        )

    def parse(self, records: list[bytes]) -> Any:
        with self._claims.admitted_by(self.claimed.append):
            return self._parser.parse(RecordRows.of(records))

    def _allocate(self, size: int) -> Any:
        self.allocated.append(size)
        return fresh(size)

    def _share(self, work: Callable[[int], None], count: int, at_once: int) -> None:
        self.at_once.append(at_once)
        for number in range(count):
            work(number)


def examples(*pictures: bytes) -> list[bytes]:
    return [encode_example({"p": picture}) for picture in pictures]


def test_the_sum_of_a_batch_is_refused_before_anything_is_allocated() -> None:
    pictures = examples(*[encoded("PNG", 100, 100)] * 9, encoded("PNG", 100, 200))
    size = 11 * 30_000 + 200 * 100 * 4  # all pixels, and Pillow's of the largest
    with pytest.raises(BatchTooLarge, match=r"this record takes 0.1 MiB") as caught:
        Parsing({"p": Image()}, (small := DecodeLimits(size - 1))).parse(pictures)
    assert caught.value.record == 9
    assert caught.value.feature == "p"
    parsing = Parsing({"p": Image()}, small._replace(max_bytes=size))
    assert len(parsing.parse(pictures)["p"].values) == 11 * 30_000
    assert parsing.at_once == [10, 1]
    assert parsing.allocated == [11 * 30_000]


def test_a_picture_that_cannot_be_decoded_at_all_is_told_as_such() -> None:
    pictures = examples(encoded("PNG", 10, 10), encoded("PNG", 1000, 1000))
    with pytest.raises(PictureTooLarge, match=r"takes 2.9 MiB of pixels and 3.8 MiB to") as caught:
        Parsing({"p": Image()}, DecodeLimits(6 * MIB)).parse(pictures)
    assert caught.value.record == 1


def test_as_many_pictures_are_decoded_at_once_as_fit() -> None:
    pictures = examples(*[encoded("PNG", 100, 100)] * 4)
    for room, at_once in [(1, 1), (2, 2), (3, 3), (9, 3)]:
        limits = DecodeLimits(4 * 30_000 + room * 40_000, at_once=3)
        parsing = Parsing({"p": Image()}, limits)
        parsing.parse(pictures)
        assert parsing.at_once == [4, at_once]
        assert parsing.claimed == [4 * 30_000 + at_once * 40_000]


def test_no_pictures_need_no_memory() -> None:
    assert Claims(DecodeLimits(0)).pictures([], [], "p", 0) == 1


def test_columns_of_one_batch_add_up_and_batches_do_not() -> None:
    pictures = examples(encoded("JPEG", 64, 64))
    features = {name: Image(key="p") for name in ("a", "b")}
    parsing = Parsing(features, DecodeLimits(2 * 64 * 64 * 3))
    for _ in range(3):
        parsing.parse(pictures)
    assert parsing.claimed == [64 * 64 * 3] * 6
    with pytest.raises(BatchTooLarge):
        Parsing(features, DecodeLimits(2 * 64 * 64 * 3 - 1)).parse(pictures)


def test_a_picture_that_is_resized_takes_its_own_pixels_too() -> None:
    pictures = examples(encoded("PNG", 100, 100))
    parsing = Parsing({"p": Image(resize=(10, 10))}, DecodeLimits())
    parsing.parse(pictures)
    assert parsing.claimed == [300 + 40_000 + 30_000 + 4 * (10_000 + 2 * 100)]


@pytest.mark.skipif(kernel.implementation != "native", reason="the kernel in Python decodes none")
def test_a_picture_that_the_kernel_decodes_takes_its_rows() -> None:
    file = io.BytesIO()
    Pillow.new("RGB", (100, 200)).save(file, "PNG")
    picture = file.getvalue()
    compressed = int.from_bytes(picture[33:37], "big")
    parsing = Parsing({"p": Image()}, DecodeLimits())
    parsing.parse(examples(picture))
    # The compressed rows, the filtered ones twice, and the rows.
    assert parsing.claimed == [60_000 + compressed + 2 * 200 * 301 + 200 * 300]


@pytest.mark.parametrize(
    ("spec", "limits"),
    [(Image(), DecodeLimits(max_pixels=99)), (Image(max_pixels=99), DecodeLimits(max_pixels=100))],
)
def test_a_picture_of_more_pixels_than_allowed(spec: Image[Any], limits: DecodeLimits) -> None:
    with pytest.raises(PictureTooLarge, match=r"10 x 10 = 100 pixels, but 99 are allowed"):
        Parsing({"p": spec}, limits).parse(examples(encoded("PNG", 10, 10)))


def test_a_spec_may_take_more_pixels_and_bounds_its_own_bytes() -> None:
    pictures = examples(encoded("JPEG", 10, 10))
    Parsing({"p": Image(max_pixels=100, max_bytes=300)}, DecodeLimits(max_pixels=99)).parse(
        pictures
    )
    with pytest.raises(DataError, match="max_bytes"):
        Parsing({"p": Image(max_bytes="299B")}, DecodeLimits(1000)).parse(pictures)


@pytest.mark.parametrize("argument", [{"max_pixels": 0}, {"max_pixels": 1.5}, {"max_bytes": "x"}])
def test_limits_of_a_spec_that_are_none(argument: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(argument))):
        Image(**argument)


def test_the_step_is_named() -> None:
    steps = [encoded("PNG", 1, 1), encoded("PNG", 50, 50)]
    record = encode_sequence_example({}, {"v": steps})
    with pytest.raises(PictureTooLarge, match="step 1: the picture takes"):
        Parsing(({}, {"v": Image()}), DecodeLimits(4000)).parse([record])


DEFAULTS: dict[str, tuple[Any, int, Any]] = {
    "numbers": (FixedLenFeature((500,), "float32", [0.0] * 500), 2000, [0.5] * 500),
    "narrow numbers": (FixedLenFeature((500,), "int8", [0] * 500), 4000, [1] * 500),
    "a text": (FixedLenFeature((), "bytes", b"x" * 1992), 2000, b"y" * 1992),
    "raw": (FixedLenFeature((500,), "float32", [0.0] * 500, raw=True), 2000, bytes(2000)),
}


@pytest.mark.parametrize("case", DEFAULTS)
def test_what_defaults_take_is_claimed(case: str) -> None:
    spec, size, _ = DEFAULTS[case]
    features = {"v": spec, "other": FixedLenFeature((), "int64", 0)}
    total = 100 * (size + 8)
    parsing = Parsing(features, DecodeLimits(total))
    assert len(parsing.parse([b""] * 100)["v"]) == 100
    assert parsing.claimed == [total]
    with pytest.raises(
        BatchTooLarge, match=r"default values take 0\.. MiB in this batch"
    ) as caught:
        Parsing(features, DecodeLimits(total - 1)).parse([b""] * 100)
    assert caught.value.feature == "v"


@pytest.mark.parametrize("case", DEFAULTS)
def test_values_that_the_records_hold_are_not_claimed(case: str) -> None:
    """A batch that is large because its records are is no bomb, whether its specs have defaults."""
    spec, _, value = DEFAULTS[case]
    parsing = Parsing({"v": spec}, DecodeLimits(1000))
    assert len(parsing.parse([encode_example({"v": value})] * 100)["v"]) == 100
    assert parsing.claimed == []


@pytest.mark.skipif(
    kernel.implementation != "native", reason="the kernel in Python cannot tell before"
)
@pytest.mark.parametrize("kind", ["numbers", "texts", "steps"])
def test_values_that_grow_are_compared_with_their_records(kind: str) -> None:
    """A zero takes one byte in a record and eight in a column; so does the end of a text."""
    count = 50_000
    features: Any = {"v": VarLenFeature("bytes" if kind == "texts" else "int64")}
    record = encode_example({"v": [b""] * count if kind == "texts" else [0] * count})
    if kind == "steps":
        features = ({}, features)
        record = encode_sequence_example({}, {"v": [[0] * count]})
    grown = {"texts": 8 * count, "numbers": 8 * count, "steps": 8 * count + 8}[kind] - len(record)
    small = bytes(encode_example({"v": [b"" if kind == "texts" else 0]}))
    records = [record] if kind == "steps" else [small, record]
    spare = 0 if kind == "steps" else 8 - len(small)
    parsing = Parsing(features, DecodeLimits(grown + spare))
    parsing.parse(records)
    with pytest.raises(BatchTooLarge, match="the values of this batch take") as caught:
        Parsing(features, DecodeLimits(grown + spare - 1)).parse(records)
    assert caught.value.record == len(records) - 1
    assert caught.value.feature == "v"


def test_empty_rows_are_claimed_before_they_are_made() -> None:
    """One high number asks for all the rows below it, each of which has an end of eight bytes."""
    features = {"v": RaggedFeature("int64", partitions=[ValueRowIds("row")])}
    records = [encode_example({"v": [1, 2], "row": [0, last]}) for last in (1, 999)]
    parsing = Parsing(features, DecodeLimits(8 * 1002))
    assert [len(rows) for rows in parsing.parse(records)["v"].to_list()] == [2, 1000]
    assert parsing.claimed == [8 * 1002]
    with pytest.raises(BatchTooLarge, match="the column takes") as caught:
        Parsing(features, DecodeLimits(8 * 1002 - 1)).parse(records)
    assert (caught.value.record, caught.value.feature) == (1, "row")


def test_a_limit_of_another_thread_s_batch_is_its_own() -> None:
    claims = Claims(DecodeLimits(10))
    claims.rows(np.array([1]), 10, 1, "p")
    with pytest.raises(Exception, match="max_bytes"):
        claims.rows(np.array([1]), 1, 1, "p")
    claims.begin()
    claims.rows(np.array([1]), 10, 1, "p")
