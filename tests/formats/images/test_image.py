from __future__ import annotations

import contextlib
import io
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from PIL import Image

from streamrec.config.machine import MOST_PIXELS
from streamrec.datasets import pictures
from streamrec.errors import (
    ConfigError,
    DataError,
    MalformedImage,
    UnsupportedFormat,
    WrongFeatureType,
)
from streamrec.formats.images import picture
from streamrec.formats.images.image import (
    decode_and_crop_jpeg,
    decode_image,
    decode_jpeg,
    decode_png,
    encode_jpeg,
    encode_png,
    read_picture,
)
from streamrec.formats.images.picture import OutputForm
from tests.formats.pictures.encoded import (
    TURBO,
    animation,
    header,
    noise,
    of_chunks,
    saved,
    smooth,
)


def made(stored: Any, *, top_down: bool = False, begin: int = 54) -> bytes:
    """Return a BMP of pixels in the stored form, from the top."""
    height, width, held = stored.shape
    rows = [row.tobytes().ljust((held * width + 3) // 4 * 4, b"-") for row in stored]
    size = -height if top_down else height
    head = struct.pack("<2s8xiiiihh", b"BM", begin, 40, width, size, 1, 8 * held)
    return head.ljust(begin, b"\0") + b"".join(rows if top_down else rows[::-1])


def read(contents: bytes, channels: int = 0) -> Any:
    picture = read_picture(contents, OutputForm(channels))
    decoded = picture.decode()
    assert decoded.shape == picture.shape
    return decoded


PIXELS = noise((5, 3, 4)).astype(np.uint8)


@pytest.mark.parametrize("top_down", [False, True])
@pytest.mark.parametrize("held", [1, 3, 4])
def test_pixels(held: int, top_down: bool) -> None:
    stored = PIXELS[..., :held]
    expected = stored if held == 1 else stored[..., [2, 1, 0, 3][:held]]
    contents = made(stored, top_down=top_down)
    np.testing.assert_array_equal(read(contents), expected)
    np.testing.assert_array_equal(
        read(contents, 3), np.broadcast_to(expected, (5, 3, max(held, 3)))[..., :3]
    )
    opaque = expected[..., 3] if held == 4 else 255
    assert (read(contents, 4)[..., 3] == opaque).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 4), (4, 1)])
@pytest.mark.parametrize("held", [1, 3, 4])
def test_a_side_of_one_pixel(size: tuple[int, int], held: int) -> None:
    stored = noise((*size, held)).astype(np.uint8)
    expected = stored if held == 1 else stored[..., [2, 1, 0, 3][:held]]
    for top_down in (False, True):
        np.testing.assert_array_equal(read(made(stored, top_down=top_down)), expected)


def test_what_others_write() -> None:
    np.testing.assert_array_equal(read(saved(PIXELS[..., :3], "BMP")), PIXELS[..., :3])


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (made(PIXELS)[:31], "ends inside its header"),
        (made(PIXELS)[:-1], "ends inside its pixels"),
        (made(PIXELS[:, :0]), "0 x 5 pixels"),
        (made(PIXELS[:0]), "3 x 0 pixels"),
        (made(np.repeat(PIXELS, 2, axis=2)[..., :5]), "of 40 bits"),
        (made(PIXELS).replace(b"\x36\0\0\0", b"\xff\xff\xff\xff", 1), "ends inside its pixels"),
    ],
)
def test_what_is_refused(contents: bytes, words: str) -> None:
    with pytest.raises(MalformedImage, match=words):
        read(contents)


@pytest.mark.parametrize(
    ("at", "field", "words"),
    [
        (28, struct.pack("<H", 16), "16 bits"),
        (28, struct.pack("<H", 1), "1 bits"),
        (30, struct.pack("<I", 1), "compressed as RLE"),
        (30, struct.pack("<I", 5), "compressed as PNG"),
        (14, struct.pack("<I", 12), "header of OS/2 1.x"),
    ],
)
def test_what_is_not_supported_is_not_called_corrupt(at: int, field: bytes, words: str) -> None:
    contents = made(PIXELS)
    with pytest.raises(UnsupportedFormat, match=words):
        read(contents[:at] + field + contents[at + len(field) :])


@pytest.mark.parametrize(("head", "packing"), [(40, 3), (56, 6), (16, 0), (66, 0)])
def test_headers_and_bit_masks_do_not_count(head: int, packing: int) -> None:
    contents = bytearray(made(PIXELS, begin=82))
    struct.pack_into("<I", contents, 14, head)
    struct.pack_into("<I", contents, 30, packing)
    np.testing.assert_array_equal(read(bytes(contents)), PIXELS[..., [2, 1, 0, 3]])


def test_a_size_that_is_not_there_sets_nothing_aside() -> None:
    contents = struct.pack("<2s8xiiiihh", b"BM", 54, 40, 2**31 - 1, 2**31 - 1, 1, 32) + bytes(60)
    with pytest.raises(MalformedImage, match="truncated"):
        read(contents)


def test_channels_that_are_not_given() -> None:
    with pytest.raises(WrongFeatureType, match="0 or 3 or 4, not 1"):
        read(made(PIXELS), 1)


PICTURES = {
    "JPEG": saved(smooth(), "JPEG"),
    "PNG": saved(smooth(), "PNG"),
    "GIF": saved(smooth(), "GIF"),
    "BMP": saved(smooth(), "BMP"),
    "WebP": saved(smooth(), "WEBP", lossless=True),
    "TIFF": saved(smooth(), "TIFF", compression="tiff_lzw"),
}
MOVING = animation("GIF")
STILL = ["JPEG", "PNG", "GIF"]


@pytest.mark.parametrize("kind", PICTURES)
def test_every_format(kind: str) -> None:
    decoded = decode_image(PICTURES[kind], 3, expand_animations=False)
    assert decoded.shape == (29, 37, 3)
    assert np.abs(decoded.astype(int) - smooth()).mean() < 8


@pytest.mark.parametrize("kind", ["GIF", "WebP"])
def test_formats_with_animations_have_four_dimensions(kind: str) -> None:
    frames = decode_image(PICTURES[kind])
    assert frames.shape == (1, 29, 37, 3)
    np.testing.assert_array_equal(frames[0], decode_image(PICTURES[kind], 0, False))


@pytest.mark.parametrize("kind", PICTURES)
def test_what_is_decoded_is_the_callers_own(kind: str) -> None:
    decoded = decode_image(PICTURES[kind])
    assert decoded.flags.writeable
    assert decoded.flags.c_contiguous
    decoded[:] = 0
    assert decode_image(PICTURES[kind]).any()


@pytest.mark.parametrize("take", [bytes, bytearray, memoryview, lambda b: np.frombuffer(b, "u1")])
def test_all_kinds_of_bytes_are_taken(take: Any) -> None:
    np.testing.assert_array_equal(
        decode_image(take(PICTURES["PNG"])), decode_image(PICTURES["PNG"])
    )


@pytest.mark.parametrize("kind", STILL)
def test_decode_jpeg_and_decode_png_take_each_others(kind: str) -> None:
    expected = decode_image(PICTURES[kind], 3, expand_animations=False)
    np.testing.assert_array_equal(decode_jpeg(PICTURES[kind], 3), expected)
    np.testing.assert_array_equal(decode_png(PICTURES[kind], 3), expected)
    wide = decode_png(PICTURES[kind], 3, "uint16")
    np.testing.assert_array_equal(wide, expected * np.uint16(257 if kind == "PNG" else 256))


@pytest.mark.parametrize("kind", ["BMP", "WebP", "TIFF"])
@pytest.mark.parametrize("decode", [decode_jpeg, decode_png])
def test_but_not_others(kind: str, decode: Any) -> None:
    with pytest.raises(UnsupportedFormat, match=f"the format {kind}, but only JPEG, PNG, GIF can"):
        decode(PICTURES[kind])


@pytest.mark.parametrize("decode", [decode_jpeg, decode_png])
def test_nor_animations(decode: Any) -> None:
    with pytest.raises(MalformedImage, match="3 frames; decode it with decode_image"):
        decode(MOVING)


class TestCrop:
    def test_a_window(self) -> None:
        whole = decode_jpeg(PICTURES["JPEG"])
        cropped = decode_and_crop_jpeg(PICTURES["JPEG"], [5, 9, 7, 11])
        np.testing.assert_array_equal(cropped, whole[5:12, 9:20])
        assert cropped.base is None
        np.testing.assert_array_equal(
            decode_and_crop_jpeg(PICTURES["JPEG"], np.array([0, 0, 29, 37])), whole
        )

    @pytest.mark.parametrize(
        "window", [[0, 0, 30, 1], [0, 1, 1, 37], [-1, 0, 2, 2], [0, 0, 0, 1], [0, 0, 1, -1]]
    )
    def test_one_that_is_not_inside(self, window: list[int]) -> None:
        with pytest.raises(WrongFeatureType, match="29 x 37 pixels, which do not hold"):
            decode_and_crop_jpeg(PICTURES["JPEG"], window)

    @pytest.mark.parametrize("window", [[1, 2, 3], [[1, 2, 3, 4]], [0.0, 0, 1, 1], "abcd"])
    def test_none(self, window: Any) -> None:
        with pytest.raises(ConfigError, match="crop_window must be"):
            decode_and_crop_jpeg(PICTURES["JPEG"], window)

    def test_of_another_format(self) -> None:
        with pytest.raises(UnsupportedFormat, match="the format PNG, but only JPEG can"):
            decode_and_crop_jpeg(PICTURES["PNG"], [0, 0, 1, 1])


@pytest.mark.parametrize("contents", [b"", b"GIF", b"II,\0 a TIFF", b"RIFF1234WAVE", b"\xff\xd8"])
def test_no_picture(contents: bytes) -> None:
    with pytest.raises(MalformedImage, match="do not begin as a picture of any known format"):
        decode_image(contents)


@pytest.mark.parametrize(
    ("contents", "name"),
    [
        (b"\xff\x0a\x00", "JPEG XL"),
        (b"\0\0\0\x0cJXL \r\n", "JPEG XL"),
        (b"\0\0\0\x0cjP  \r\n", "JPEG 2000"),
        (b"\0\0\0\x20ftypavif", "AVIF"),
        (b"\0\0\0\x20ftypheic", "HEIC"),
        (b"P6 1 1 255\nabc", "PNM"),
        (b"8BPS\0\1", "PSD"),
    ],
)
def test_another_format_is_not_damage(contents: bytes, name: str) -> None:
    with pytest.raises(UnsupportedFormat, match=f"a picture in the format {name}, but only JPEG"):
        decode_image(contents)


@pytest.mark.parametrize("contents", ["text", 7, None])
def test_no_bytes(contents: Any) -> None:
    with pytest.raises(ConfigError, match="contents must be the bytes of one picture, not"):
        decode_image(contents)


@pytest.mark.parametrize("channels", [2, 5, -1, True, "3", None])
def test_no_number_of_channels(channels: Any) -> None:
    with pytest.raises(ConfigError, match="channels must be 0, 1, 3 or 4"):
        decode_image(PICTURES["PNG"], channels)


@pytest.mark.parametrize("dtype", ["float32", "nonsense", np.int8])
def test_no_dtype_of_a_png(dtype: Any) -> None:
    with pytest.raises(ConfigError, match="dtype must be 'uint8' or 'uint16'"):
        decode_png(PICTURES["PNG"], dtype=dtype)


@pytest.mark.parametrize("kind", PICTURES)
def test_the_limit_of_pixels(kind: str) -> None:
    assert decode_image(PICTURES[kind], max_pixels=29 * 37).size
    with pytest.raises(MalformedImage, match="raise max_pixels"):
        decode_image(PICTURES[kind], max_pixels=29 * 37 - 1)


def test_bombs_are_refused_before_memory_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any) -> Any:
        raise AssertionError("memory is set aside")

    jpeg, gif = PICTURES["JPEG"], PICTURES["GIF"]
    at, frame = jpeg.index(b"\xff\xc0"), gif.index(struct.pack("<HH", 37, 29), 10)
    bombs = [
        jpeg[: at + 5] + b"\xff\xff\xff\xff" + jpeg[at + 9 :],
        of_chunks((b"IHDR", header(1 << 30, 1 << 30)), (b"IDAT", b""), (b"IEND", b"")),
        gif[:frame] + b"\xff\xff\xff\xff" + gif[frame + 4 :],
        PICTURES["WebP"][:21] + b"\xff\xff\xff\x0f" + PICTURES["WebP"][25:],
        PICTURES["BMP"][:18] + b"\xff\xff\xff\x7f\xff\xff\xff\x7f" + PICTURES["BMP"][26:],
    ]
    monkeypatch.setattr(np, "zeros", never)
    monkeypatch.setattr(np, "empty", never)
    monkeypatch.setattr(np, "full", never)
    monkeypatch.setattr("PIL.Image.new", never)
    for bomb in bombs:
        with pytest.raises(MalformedImage):
            decode_image(bomb)


@pytest.mark.parametrize("kind", PICTURES)
def test_pillows_own_limit_is_at_most_one_more(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 1)
    try:
        decode_image(PICTURES[kind])
    except MalformedImage as error:
        assert kind in ("WebP", "TIFF")
        assert "could be decompression bomb" in str(error)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "WebP", "TIFF"])
def test_a_truncated_one_is_refused_whatever_pillow_is_told(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("PIL.ImageFile.LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(MalformedImage):
        decode_image(PICTURES[kind][:-100])


@pytest.mark.parametrize("kind", PICTURES)
@given(data=st.data())
def test_mutations_raise_nothing_else(kind: str, data: st.DataObject) -> None:
    octets = bytearray(PICTURES[kind])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(octets) - 1))
        replacement = data.draw(st.binary(max_size=4))
        octets[at : at + data.draw(st.integers(0, 4))] = replacement
    channels = data.draw(st.sampled_from([0, 1, 3, 4]))
    with contextlib.suppress(DataError):
        decode_image(bytes(octets), channels, max_pixels=1 << 18)


ARRAYS = st.sampled_from([np.uint8, np.uint16]).flatmap(
    lambda dtype: npst.arrays(
        dtype, st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4))
    )
)


class TestEncodePng:
    @given(array=ARRAYS, compression=st.integers(-1, 9))
    def test_round_trip(self, array: Any, compression: int) -> None:
        decoded = decode_png(encode_png(array, compression), dtype=array.dtype)
        np.testing.assert_array_equal(decoded, array)

    def test_other_readers_read_it(self) -> None:
        opened = Image.open(io.BytesIO(encode_png(smooth())))
        np.testing.assert_array_equal(np.asarray(opened), smooth())

    def test_it_compresses_photographs_as_pillow_does(self) -> None:
        for path in sorted(Path(pictures.__path__[0]).glob("*.jpg")):
            array = decode_jpeg(path.read_bytes())
            assert len(encode_png(array)) <= 1.03 * len(saved(array.squeeze(), "PNG"))

    def test_compression(self) -> None:
        assert len(encode_png(smooth(), 9)) < len(encode_png(smooth(), 0))

    @pytest.mark.parametrize(
        "array",
        [
            np.zeros((2, 2), np.uint8),
            np.zeros((2, 2, 5), np.uint8),
            np.zeros((2, 2, 3), np.int16),
            np.zeros((0, 2, 3), np.uint8),
            [[[1.5]]],
        ],
    )
    def test_no_picture(self, array: Any) -> None:
        with pytest.raises(ConfigError, match="image"):
            encode_png(array)

    def test_no_compression(self) -> None:
        with pytest.raises(ConfigError, match="compression must be a number from -1 to 9"):
            encode_png(smooth(), 10)


class TestEncodeJpeg:
    @pytest.mark.parametrize("channels", [1, 3])
    def test_round_trip(self, channels: int) -> None:
        array = smooth()[..., :channels]
        decoded = decode_jpeg(encode_jpeg(array))
        assert decoded.shape == array.shape
        assert np.abs(decoded.astype(int) - array).mean() < 4

    def test_a_system_without_files_in_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        here = encode_jpeg(smooth())
        monkeypatch.delattr(os, "memfd_create")
        assert encode_jpeg(smooth()) == here

    def test_quality(self) -> None:
        sizes = [len(encode_jpeg(smooth(), quality)) for quality in (0, 50, 95, 100)]
        assert sizes == sorted(set(sizes))

    @pytest.mark.parametrize("quality", [-1, 101])
    def test_no_quality(self, quality: int) -> None:
        with pytest.raises(ConfigError, match="quality must be a number from 0 to 100"):
            encode_jpeg(smooth(), quality)

    @pytest.mark.parametrize("channels", [2, 4])
    def test_no_picture(self, channels: int) -> None:
        with pytest.raises(ConfigError, match="of 1 to 3 channels"):
            encode_jpeg(np.zeros((2, 2, channels), np.uint8))

    def test_a_side_that_no_jpeg_has(self) -> None:
        with pytest.raises(ConfigError, match="more than 65500 pixels"):
            encode_jpeg(np.zeros((1, 65501, 1), np.uint8))


class TestWithoutLibraries:
    @pytest.fixture(autouse=True)
    def not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [name for name in sys.modules if name.startswith("PIL.")]:
            monkeypatch.setitem(sys.modules, name, None)
        for name in (TURBO, "simplejpeg"):
            monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setattr(picture, "optional", lambda _: None)

    @pytest.mark.parametrize("kind", [kind for kind in PICTURES if kind != "BMP"])
    def test_the_error_says_what_to_install(self, kind: str) -> None:
        with pytest.raises(ConfigError, match=r"pip install -e '\.\[image(-nogil)?\]'"):
            decode_image(PICTURES[kind])

    def test_so_does_that_of_encoding(self) -> None:
        with pytest.raises(ConfigError, match=r"pip install -e '\.\[image(-nogil)?\]'"):
            encode_jpeg(smooth())


def test_libraries_are_imported_when_they_are_needed() -> None:
    code = (
        "import sys, numpy, streamrec.formats.examples.features; "
        "import streamrec.formats.images.image as i; "
        f"assert not {{'PIL', '{TURBO}'}} & set(sys.modules); "
        "i.decode_jpeg(i.encode_jpeg(numpy.zeros((1, 1, 1), 'u1'))); "
        f"assert {{'PIL', '{TURBO}'}} < set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_the_limit_is_a_quarter_gib_of_colours() -> None:
    assert MOST_PIXELS * 3 * 4 <= 1 << 30


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_another_transform_is_refused_whatever_the_picture_is(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"dct_method is .*, not 'FAST'"):
        decode_jpeg(PICTURES[kind], dct_method="FAST")
