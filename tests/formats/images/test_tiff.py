from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
from PIL import Image

from streamrec.errors import MalformedImage, PictureTooLarge, UnsupportedFormat
from streamrec.formats.images.image import read_picture
from streamrec.formats.images.picture import OutputForm
from streamrec.formats.images.pillow import check_tiff
from tests.formats.pictures.encoded import noise, saved


def read(contents: bytes, channels: int = 0) -> Any:
    picture = read_picture(contents, OutputForm(channels))
    decoded = picture.decode()
    assert decoded.shape == picture.shape
    return decoded


def encoded(image: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "TIFF", **options)
    return file.getvalue()


PIXELS = noise((5, 3, 4)).astype(np.uint8)


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_deflate", "packbits"])
@pytest.mark.parametrize("held", [3, 4])
def test_pixels(held: int, compression: str | None) -> None:
    contents = saved(PIXELS[..., :held], "TIFF", compression=compression)
    np.testing.assert_array_equal(read(contents), PIXELS[..., :held])


def test_gray_is_one_channel_and_is_given_as_three_too() -> None:
    contents = encoded(Image.fromarray(PIXELS[..., 0]))
    np.testing.assert_array_equal(read(contents), PIXELS[..., :1])
    np.testing.assert_array_equal(read(contents, 3), np.repeat(PIXELS[..., :1], 3, axis=2))


def test_bits_palettes_and_inks() -> None:
    bits = Image.fromarray(PIXELS[..., 0] > 127)
    np.testing.assert_array_equal(read(encoded(bits))[..., 0], 255 * (PIXELS[..., 0] > 127))
    colours = Image.fromarray(PIXELS[..., :3])
    for mode in ("P", "CMYK"):
        expected = np.asarray(colours.convert(mode).convert("RGB"))
        np.testing.assert_array_equal(read(encoded(colours.convert(mode))), expected)


def test_the_first_page() -> None:
    first, second = Image.fromarray(PIXELS[..., :3]), Image.fromarray(PIXELS[..., 1:])
    contents = encoded(first, save_all=True, append_images=[second])
    np.testing.assert_array_equal(read(contents), PIXELS[..., :3])


def test_more_bits_are_refused() -> None:
    deep = Image.fromarray(PIXELS[..., 0].astype(np.float32))
    with pytest.raises(UnsupportedFormat, match="mode F, which is not supported"):
        read(encoded(deep))


@pytest.mark.parametrize("big", [False, True])
def test_both_sizes_of_offsets(big: bool) -> None:
    contents = encoded(Image.fromarray(PIXELS[..., :3]), big_tiff=big)
    assert contents[2] == (43 if big else 42)
    np.testing.assert_array_equal(read(contents), PIXELS[..., :3])


def test_opacity_beside_gray() -> None:
    shown = read(encoded(Image.fromarray(PIXELS[..., :2], "LA")))
    np.testing.assert_array_equal(shown, PIXELS[..., [0, 0, 0, 1]])


def with_entries(
    *entries: tuple[int, int, int, int], data: bytes = b"", big: bool = False
) -> bytes:
    """Return a TIFF whose directory has these entries: tag, type, count and value."""
    head = (
        struct.pack("<2sHHHQ", b"II", 43, 8, 0, 16) if big else struct.pack("<2sHI", b"II", 42, 8)
    )
    number, entry, end = ("<Q", "<HHQQ", "<Q") if big else ("<H", "<HHII", "<I")
    body = b"".join(struct.pack(entry, *each) for each in entries)
    return head + struct.pack(number, len(entries)) + body + struct.pack(end, 0) + data


@pytest.mark.parametrize("big", [False, True])
def test_entries_that_share_their_bytes(big: bool) -> None:
    shared = with_entries(*[(tag, 7, 900, 8) for tag in range(1000)], data=bytes(1000), big=big)
    with pytest.raises(MalformedImage, match="directory lists 900,000 bytes of values, but the fi"):
        read(shared)


def test_more_strips_than_allowed() -> None:
    with pytest.raises(MalformedImage, match="70,000 strips or tiles, but 65,536 are allowed"):
        read(with_entries((273, 4, 70_000, 8), data=bytes(280_000)))


@pytest.mark.parametrize("sides", [(256, 257), (322, 323)])
def test_a_picture_or_a_tile_of_more_pixels_than_allowed(sides: tuple[int, int]) -> None:
    contents = with_entries(*[(tag, 4, 1, 1 << 15) for tag in sides])
    with pytest.raises(PictureTooLarge, match="32768 x 32768"):
        read(contents)


def test_a_directory_behind_the_end() -> None:
    with pytest.raises(MalformedImage):
        read(with_entries((256, 4, 1, 1))[:12])


def test_an_intact_directory_of_each_byte_order() -> None:
    little = encoded(Image.fromarray(PIXELS[..., :3]))
    assert little.startswith(b"II")
    check_tiff(memoryview(little), 15)
    with pytest.raises(PictureTooLarge, match="5 x 3"):
        check_tiff(memoryview(little), 14)
