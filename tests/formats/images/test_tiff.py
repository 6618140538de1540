from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from streamrec.errors import UnsupportedFormat
from streamrec.formats.images.image import read_picture
from streamrec.formats.images.picture import Wanted
from tests.formats.pictures.encoded import noise, saved


def read(contents: bytes, channels: int = 0) -> Any:
    picture = read_picture(contents, Wanted(channels))
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
