from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import PIL.Image
import pytest

from streamrec.datasets.sample_pictures import sample_pictures
from streamrec.errors import ConfigError, MalformedImage, MissingFeature, WrongFeatureType
from streamrec.flow.cores import share_work
from streamrec.formats.examples.descriptions import USUAL_GROWTH, describe, growth_of
from streamrec.formats.examples.example import (
    SequenceExample,
    encode_example,
    encode_sequence_example,
)
from streamrec.formats.examples.features import (
    FeatureParser,
    parse_example,
    parse_sequence_example,
    parse_single_example,
    parse_single_sequence_example,
)
from streamrec.formats.examples.image_spec import Image
from streamrec.formats.examples.specs import FixedLenFeature, RaggedFeature
from streamrec.formats.images import picture as picture_module
from streamrec.formats.images.image import decode_image, decode_jpeg, encode_png
from streamrec.values.columns import Arrays, Ragged
from streamrec.values.record_rows import RecordRows
from tests.formats.pictures.encoded import TURBO, animation, noise, saved, smooth

pytestmark = pytest.mark.both_kernels

PHOTOGRAPHS = sample_pictures()
SIZES = [(4, 5), (1, 1), (7, 2)]
ARRAYS = [noise((*size, 3), seed=k).astype(np.uint8) for k, size in enumerate(SIZES)]
PNGS = [encode_png(array) for array in ARRAYS]
LISTS = [encode_example({"p": pictures}) for pictures in (PNGS[:2], [b""][:0], PNGS[2:])]
DEEP = [noise((*size, 1), seed=k).astype(np.uint16) * 251 for k, size in enumerate(SIZES)]


def examples(pictures: list[Any]) -> list[bytes]:
    return [encode_example({"p": picture}) for picture in pictures]


class TestOfAnySize:
    def test_a_column(self) -> None:
        column: Any = parse_example(examples(PNGS), {"p": Image()})["p"]
        assert isinstance(column, Arrays)
        assert column.shapes.tolist() == [[4, 5, 3], [1, 1, 3], [7, 2, 3]]
        assert column.offsets.tolist() == [0, 60, 63, 105]
        for got, expected in zip(column, ARRAYS, strict=True):
            np.testing.assert_array_equal(got, expected)
        assert column.values.flags.writeable

    def test_a_single_record(self) -> None:
        got = parse_single_example(examples(PNGS)[2], {"p": Image()})["p"]
        np.testing.assert_array_equal(got, ARRAYS[2])

    @pytest.mark.parametrize(
        ("channels", "shape"), [(0, (4, 5, 3)), (1, (4, 5, 1)), (4, (4, 5, 4))]
    )
    def test_channels(self, channels: int, shape: tuple[int, ...]) -> None:
        got = parse_single_example(examples(PNGS)[0], {"p": Image(channels=channels)})["p"]
        assert got.shape == shape

    def test_of_animations_the_first_frame(self) -> None:
        got = parse_single_example(examples([animation("GIF")])[0], {"p": Image()})["p"]
        assert got.shape == (29, 37, 3)

    def test_no_rows(self) -> None:
        column: Any = parse_example([], {"p": Image()})["p"]
        assert (len(column), column.to_list(), column.shapes.shape) == (0, [], (0, 3))


class TestOfOneSize:
    def test_a_column(self) -> None:
        column: Any = parse_example(examples(PNGS[:1] * 3), {"p": Image((4, 5))})["p"]
        np.testing.assert_array_equal(column, np.stack(ARRAYS[:1] * 3))
        assert column.flags.writeable

    def test_channels_of_the_shape(self) -> None:
        column: Any = parse_example(examples(PNGS[:1]), {"p": Image((4, 5, 1))})["p"]
        assert column.shape == (1, 4, 5, 1)

    def test_no_rows(self) -> None:
        column: Any = parse_example([], {"p": Image((4, 5))})["p"]
        assert column.shape == (0, 4, 5, 3)

    def test_another_size_is_refused(self) -> None:
        with pytest.raises(
            WrongFeatureType, match=r"7 x 2 pixels, but the spec says 4 x 5; give res"
        ) as e:
            parse_example(examples([PNGS[0], PNGS[2]]), {"p": Image((4, 5))})
        assert (e.value.record, e.value.feature) == (1, "p")


class TestResized:
    @pytest.mark.parametrize("channels", [1, 3])
    def test_is_pillows_antialiased_bilinear(self, channels: int) -> None:
        pictures = [smooth(29, 37, channels), smooth(8, 9, channels), smooth(300, 200, channels)]
        records = examples([saved(picture, "PNG") for picture in pictures])
        column: Any = parse_example(records, {"p": Image(channels=channels, resize=(8, 9))})["p"]
        assert column.shape == (3, 8, 9, channels)
        for got, picture in zip(column, pictures, strict=True):
            expected = PIL.Image.fromarray(picture).resize((9, 8), PIL.Image.Resampling.BILINEAR)
            np.testing.assert_array_equal(got, np.asarray(expected).reshape(8, 9, channels))

    def test_colours_below_clear_pixels_do_not_show(self) -> None:
        picture = np.zeros((8, 8, 4), np.uint8)
        picture[:, :4], picture[:, 4:, 0] = (0, 0, 255, 255), 255
        record = examples([encode_png(picture)])
        column: Any = parse_example(record, {"p": Image(channels=4, resize=(1, 1))})["p"]
        assert column[0, 0, 0, :3].tolist() == [0, 0, 255]
        assert 120 < column[0, 0, 0, 3] < 136

    @pytest.mark.parametrize("size", [(32, 32), (96, 64), (224, 224)])
    def test_a_jpeg_decoded_at_a_fraction_is_near_to_the_whole(self, size: tuple[int, int]) -> None:
        spec = Image(resize=size, dct_method="INTEGER_ACCURATE")
        column: Any = parse_example(examples(PHOTOGRAPHS), {"p": spec})["p"]
        for got, contents in zip(column, PHOTOGRAPHS, strict=True):
            whole = PIL.Image.fromarray(decode_jpeg(contents, 3, dct_method="INTEGER_ACCURATE"))
            expected = np.asarray(whole.resize(size[::-1], PIL.Image.Resampling.BILINEAR))
            assert np.abs(got.astype(int) - expected).mean() < 2

    def test_a_picture_of_this_size_is_not_resized(self) -> None:
        column: Any = parse_example(examples(PNGS[:1]), {"p": Image(resize=(4, 5))})["p"]
        np.testing.assert_array_equal(column[0], ARRAYS[0])

    def test_steps(self) -> None:
        record = encode_sequence_example({}, {"v": PNGS})
        column: Any = parse_sequence_example([record], None, {"v": Image(resize=(2, 3))}).sequences
        assert column["v"].values.shape == (3, 2, 3, 3)


class TestCropped:
    @pytest.mark.parametrize("channels", [1, 3])
    def test_cuts_the_same_window_out_of_each_picture(self, channels: int) -> None:
        contents = [*PHOTOGRAPHS, saved(smooth(80, 90), "PNG")]
        spec = Image(channels=channels, crop=(13, 21, 40, 50))
        column: Any = parse_example(examples(contents), {"p": spec})["p"]
        assert column.shape == (len(contents), 40, 50, channels)
        for got, picture in zip(column, contents, strict=True):
            whole = decode_image(picture, channels)
            np.testing.assert_array_equal(got, whole[13:53, 21:71])

    def test_the_window_is_resized(self) -> None:
        spec = Image(crop=(2, 3, 20, 30), resize=(8, 9), dct_method="INTEGER_ACCURATE")
        column: Any = parse_example(examples(PHOTOGRAPHS[:1]), {"p": spec})["p"]
        window = decode_jpeg(PHOTOGRAPHS[0], dct_method="INTEGER_ACCURATE")[2:22, 3:33]
        expected = PIL.Image.fromarray(window).resize((9, 8), PIL.Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(column[0], np.asarray(expected))

    def test_a_picture_that_does_not_hold_the_window(self) -> None:
        records = examples([PNGS[0], PNGS[2]])
        with pytest.raises(WrongFeatureType, match="7 x 2 pixels, which do not hold") as caught:
            parse_example(records, {"p": Image(crop=(0, 0, 4, 5))})
        assert (caught.value.record, caught.value.feature) == (1, "p")

    def test_steps(self) -> None:
        record = encode_sequence_example({}, {"v": PNGS})
        columns: Any = parse_sequence_example([record], None, {"v": Image(crop=(0, 0, 1, 1))})
        assert columns.sequences["v"].values.shape == (3, 1, 1, 3)


def test_the_transform_of_jpegs() -> None:
    contents = saved(smooth(), "JPEG", quality=50)
    fast, accurate = (
        parse_single_example(examples([contents])[0], {"p": Image(dct_method=method)})["p"]
        for method in ("", "INTEGER_ACCURATE")
    )
    np.testing.assert_array_equal(fast, decode_jpeg(contents))
    np.testing.assert_array_equal(accurate, decode_jpeg(contents, dct_method="INTEGER_ACCURATE"))
    assert (fast != accurate).any()


@pytest.mark.parametrize(
    "spec",
    [Image(), Image((4, 5)), Image(resize=(2, 2)), Image(crop=(1, 1, 2, 2))],
    ids=["any", "one", "resized", "cropped"],
)
class TestFaults:
    def test_a_corrupt_picture(self, spec: Image) -> None:
        records = examples([PNGS[0], PNGS[0][:-20], PNGS[0][:-30]])
        with pytest.raises(MalformedImage, match="truncated") as caught:
            FeatureParser({"p": spec}).parse(RecordRows.of(records), lambda shard: f"u{shard}")
        assert caught.value.fields() == {"url": "u0", "record": 1, "feature": "p"}

    def test_corrupt_pixels(self, spec: Image) -> None:
        # The shape is that of the JPEG's header; what is missing is seen later.
        jpeg = saved(smooth(4, 5), "JPEG")
        with pytest.raises(MalformedImage, match="cannot be decoded") as caught:
            parse_example(examples([jpeg, jpeg[:-9], jpeg[:-8]]), {"p": spec})
        assert caught.value.record == 1

    def test_channels_that_are_not_given(self, spec: Image) -> None:
        four = replace(spec, channels=4)
        with pytest.raises(WrongFeatureType, match="this JPEG picture gives channels") as caught:
            parse_example(examples([PNGS[0], saved(smooth(), "JPEG")]), {"p": four})
        assert caught.value.record == 1

    def test_the_first_of_many_is_named_whoever_decodes(self, spec: Image) -> None:
        records = examples([PNGS[0]] * 20 + [b"x"] * 20)
        with ThreadPoolExecutor(3) as threads:
            parser = FeatureParser({"p": spec}, share=partial(share_work, threads, 3))
            for _ in range(5):
                with pytest.raises(MalformedImage) as caught:
                    parser.parse(RecordRows.of(records))
                assert caught.value.record == 20

    @pytest.mark.parametrize(
        ("held", "kind", "words"),
        [
            ([], MissingFeature, r"no such feature \(it has 'p'\); correct the name, or leave the"),
            ([b"a", b"b"], WrongFeatureType, "holds 2 byte strings, but Image takes one"),
            ([1], WrongFeatureType, "holds int64, but Image takes one byte string; use another"),
            ([b""], MalformedImage, "do not begin as a picture"),
        ],
    )
    def test_a_record_without(self, spec: Image, held: Any, kind: Any, words: str) -> None:
        with pytest.raises(kind, match=words) as caught:
            parse_example(examples([PNGS[0], held]), {"p": spec})
        assert (caught.value.record, caught.value.feature) == (1, "p")


def test_the_encoded_picture_can_be_had_instead() -> None:
    features = {"p": FixedLenFeature((), bytes)}
    assert parse_single_example(examples(PNGS)[0], features)["p"] == PNGS[0]


def test_it_cannot_be_parsed_in_another_way_beside_it() -> None:
    with pytest.raises(ConfigError, match="is needed as fixed bytes and as varlen bytes"):
        parse_example(examples(PNGS), {"p": Image(), "q": RaggedFeature(bytes, "p")})


def test_threads_give_the_same() -> None:
    records = examples(PNGS * 10)
    with ThreadPoolExecutor(3) as threads:
        parser = FeatureParser({"p": Image()}, share=partial(share_work, threads, 3))
        column: Any = parser.parse(RecordRows.of(records))["p"]
    alone: Any = parse_example(records, {"p": Image()})["p"]
    np.testing.assert_array_equal(column.values, alone.values)


class TestSequences:
    RECORDS = (
        encode_sequence_example({"p": PNGS[1]}, {"v": [PNGS[0], PNGS[2]]}),
        encode_sequence_example({"p": PNGS[1]}, {"v": []}),
        encode_sequence_example({"p": PNGS[1]}, {"v": [PNGS[1]]}),
    )

    def test_of_any_size(self) -> None:
        got = parse_sequence_example(self.RECORDS, {"p": Image((1, 1))}, {"v": Image()})
        assert np.asarray(got.context["p"]).shape == (3, 1, 1, 3)
        column: Any = got.sequences["v"]
        assert isinstance(column, Ragged)
        shapes = [[frame.shape for frame in row] for row in column.to_list()]
        assert shapes == [[(4, 5, 3), (7, 2, 3)], [], [(1, 1, 3)]]
        np.testing.assert_array_equal(column[0][1], ARRAYS[2])

    def test_of_one_size(self) -> None:
        record = encode_sequence_example({}, {"v": [PNGS[0]] * 3})
        got = parse_sequence_example([record, record], None, {"v": Image((4, 5))})
        column: Any = got.sequences["v"]
        assert column.values.shape == (6, 4, 5, 3)
        np.testing.assert_array_equal(column[1][2], ARRAYS[0])
        assert column.to_dense().shape == (2, 3, 4, 5, 3)
        _, lists = parse_single_sequence_example(record, None, {"v": Image((4, 5))})
        assert lists["v"].shape == (3, 4, 5, 3)

    def test_a_single_record_of_any_size(self) -> None:
        _, lists = parse_single_sequence_example(self.RECORDS[0], None, {"v": Image()})
        np.testing.assert_array_equal(lists["v"][1], ARRAYS[2])

    def test_a_corrupt_frame(self) -> None:
        records = [*self.RECORDS, encode_sequence_example({}, {"v": [PNGS[0], b"x"]})]
        with pytest.raises(
            MalformedImage, match="step 1: the bytes do not begin as a picture"
        ) as caught:
            parse_sequence_example(records, None, {"v": Image()})
        assert (caught.value.record, caught.value.feature) == (3, "v")

    def test_a_step_without_one(self) -> None:
        message = SequenceExample.FromString(self.RECORDS[0])
        message.feature_lists.feature_list["v"].feature.add()
        records = [self.RECORDS[2], message.SerializeToString()]
        with pytest.raises(WrongFeatureType, match="step 2: it holds 0 byte strings") as caught:
            parse_sequence_example(records, None, {"v": Image()})
        assert caught.value.record == 1

    def test_no_such_feature_list(self) -> None:
        with pytest.raises(MissingFeature, match=r"no such feature list.*or leave the spec out"):
            parse_sequence_example(self.RECORDS, None, {"w": Image()})


@pytest.mark.parametrize("features", [{"p": Image()}, ({}, {"p": Image()})], ids=["one", "pair"])
@pytest.mark.parametrize("library", ["PIL.Image", TURBO])
def test_without_a_library_it_is_said_before_anything_is_read(
    features: Any, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamrec.streams.opening import open as open_stream

    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setattr(picture_module, "optional", lambda _: None)
    if library == TURBO:  # what is taken in its place
        monkeypatch.setitem(sys.modules, "simplejpeg", None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[image(-nogil)?\]'"):
        open_stream("no-such-shard", features)


@pytest.mark.parametrize(
    ("features", "row", "factor"),
    [
        (None, 0, 1),
        ({"a": FixedLenFeature((), int)}, 0, 1),
        ({"a": Image((4, 5)), "b": Image((2, 2, 1))}, 64, 1),
        ({"a": Image((4, 5)), "b": Image()}, 60, USUAL_GROWTH),
        (({"a": Image((4, 5))}, {}), 60, 1),
        (({}, {"a": Image((4, 5))}), 0, USUAL_GROWTH),
        ({"a": Image(resize=(4, 5), channels=1)}, 20, 1),
        ({"a": Image(crop=(9, 9, 4, 5), channels=1)}, 20, 1),
    ],
)
def test_how_records_grow(features: Any, row: int, factor: int) -> None:
    assert growth_of(describe(features)) == (row, factor)


class TestOfASequence:
    def test_any_number_of_pictures(self) -> None:
        column: Any = parse_example(LISTS, {"p": Image(sequence=True)})["p"]
        assert column.row_splits.tolist() == [0, 2, 2, 3]
        for got, expected in zip(column.values, ARRAYS, strict=True):
            np.testing.assert_array_equal(got, expected)

    def test_of_one_size(self) -> None:
        spec = Image(resize=(3, 2), sequence=True)
        column: Any = parse_example(LISTS, {"p": spec})["p"]
        assert column.values.shape == (3, 3, 2, 3)

    def test_a_fault_names_the_picture(self) -> None:
        record = encode_example({"p": [PNGS[0], b"no picture"]})
        with pytest.raises(MalformedImage, match="step 1: ") as caught:
            parse_example([*LISTS, record], {"p": Image(sequence=True)})
        assert caught.value.record == 3

    def test_not_in_a_feature_list(self) -> None:
        features = None, {"p": Image(sequence=True)}
        with pytest.raises(ConfigError, match="a feature list, each step of which holds one"):
            FeatureParser(features)

    def test_their_size_is_an_estimate(self) -> None:
        assert growth_of(describe({"p": Image((4, 5), sequence=True)})) == (0, USUAL_GROWTH)


class TestOfDepth:
    def test_sixteen_bits(self) -> None:
        records = examples([encode_png(array) for array in DEEP])
        column = parse_example(records, {"p": Image(channels=1, dtype="uint16")})["p"]
        assert [array.dtype for array in column] == [np.uint16] * 3
        for got, expected in zip(column, DEEP, strict=True):
            np.testing.assert_array_equal(got, expected)

    def test_of_one_size(self) -> None:
        records = examples([encode_png(DEEP[0])] * 2)
        column = parse_example(records, {"p": Image((4, 5, 1), dtype="uint16")})["p"]
        np.testing.assert_array_equal(column, np.stack([DEEP[0]] * 2))
        assert growth_of(describe({"p": Image((4, 5, 1), dtype="uint16")})) == (40, 1)

    def test_jpeg_has_eight(self) -> None:
        spec = Image(dtype="uint16")
        with pytest.raises(WrongFeatureType, match="pixels of uint8, but the spec says uint16"):
            parse_example(examples(PHOTOGRAPHS[:1]), {"p": spec})

    @pytest.mark.parametrize("shape", [None, (4, 5)])
    def test_floats_in_four_bytes(self, shape: Any) -> None:
        floats = np.random.default_rng(0).normal(size=(2, 4, 5, 1)).astype("<f4")
        records = examples([encode_png(array.view(np.uint8)) for array in floats])
        column = parse_example(records, {"p": Image(shape, channels=1, dtype="float32")})["p"]
        for got, expected in zip(column, floats, strict=True):
            assert got.dtype == np.float32
            np.testing.assert_array_equal(got, expected)

    @pytest.mark.parametrize(
        ("values", "why"),
        [
            ({"dtype": "int8"}, "dtype must be one of uint8, uint16, float32, not 'int8'"),
            ({"dtype": "uint16", "resize": (2, 2)}, "pictures of uint16 are not resized"),
            ({"dtype": "float32"}, "pictures of float32 have 1 channel, not 3"),
            ({"sequence": 1}, "sequence must be True or False, not 1"),
        ],
    )
    def test_refusals(self, values: Any, why: str) -> None:
        with pytest.raises(ConfigError, match=why):
            Image(**values)
