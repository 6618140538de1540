from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from streamrec.errors import MalformedImage, UnsupportedFormat, WrongFeatureType
from streamrec.formats.images.image import read_picture
from streamrec.formats.images.picture import OutputForm
from tests.formats.pictures.encoded import noise, saved


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
