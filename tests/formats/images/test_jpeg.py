from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from streamrec.errors import MalformedImage, WrongFeatureType
from streamrec.formats.images.image import decode_jpeg, read_picture
from streamrec.formats.images.picture import Wanted
from tests.by_day import stops
from tests.formats.pictures.encoded import saved, smooth, without_segment

if TYPE_CHECKING:
    from streamrec.formats.images.picture import Picture

COLOUR = saved(smooth(), "JPEG")
GRAY = saved(smooth(channels=1), "JPEG")
CMYK = saved(smooth(), "JPEG", "CMYK")
FRAME = COLOUR.index(b"\xff\xc0")


def read(contents: bytes, channels: int = 0) -> Picture:
    return read_picture(contents, Wanted(channels))


def changed(at: int, octets: bytes) -> bytes:
    return COLOUR[:at] + octets + COLOUR[at + len(octets) :]


@pytest.mark.parametrize(
    ("contents", "channels", "shape"),
    [
        (COLOUR, 0, (29, 37, 3)),
        (COLOUR, 1, (29, 37, 1)),
        (GRAY, 0, (29, 37, 1)),
        (GRAY, 3, (29, 37, 3)),
        (CMYK, 0, (29, 37, 3)),
    ],
)
def test_the_size_is_known_before_the_pixels(
    contents: bytes, channels: int, shape: tuple[int, ...]
) -> None:
    picture = read(contents, channels)
    assert picture.shape == shape
    assert picture.decode().shape == shape


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_rows": 1}])
def test_the_pixels_are_about_those_that_were_written(options: dict[str, Any]) -> None:
    decoded = read(saved(smooth(), "JPEG", quality=95, **options)).decode()
    assert np.abs(decoded.astype(int) - smooth()).mean() < 4


def test_gray_is_the_brightness() -> None:
    gray = read(COLOUR, 1).decode()[..., 0].astype(int)
    assert np.abs(gray - np.asarray(Image.fromarray(smooth()).convert("L"))).max() < 12


@pytest.mark.parametrize("adobe", [True, False])
def test_inks_become_colours(adobe: bool) -> None:
    picture = CMYK if adobe else without_segment(CMYK, 0xEE)
    decoded = read(picture).decode().astype(int)
    # Without Adobe's marker the same numbers are inks that are not inverted.
    expected = smooth() if adobe else np.zeros_like(smooth())
    assert np.abs(decoded - expected).mean() < 6


def test_orientation_is_ignored() -> None:
    tags = Image.Exif()
    tags[0x112] = 6
    turned = saved(smooth(), "JPEG", exif=tags)
    np.testing.assert_array_equal(read(turned).decode(), read(COLOUR).decode())


@pytest.mark.parametrize("between", [b"", b"junk", b"\xff\xff\xff", b"\xff\x00x"])
def test_what_libjpeg_passes_over_between_segments(between: bytes) -> None:
    at = COLOUR.index(b"\xff\xdb")
    contents = COLOUR[:at] + between + COLOUR[at:]
    expected = decode_jpeg(COLOUR, dct_method="INTEGER_ACCURATE")
    np.testing.assert_array_equal(decode_jpeg(contents, dct_method="INTEGER_ACCURATE"), expected)


def test_passes_over_damage_behind_the_pixels() -> None:
    np.testing.assert_array_equal(
        decode_jpeg(COLOUR[:-2] + b"junk" + COLOUR[-2:]), decode_jpeg(COLOUR)
    )


def test_passes_over_damage_among_the_pixels() -> None:
    at = len(COLOUR) - 100
    decoded = decode_jpeg(changed(at, bytes(20)))
    np.testing.assert_array_equal(decoded[:8], decode_jpeg(COLOUR)[:8])


@pytest.mark.parametrize(
    ("least", "size"),
    [
        ((0, 0), (29, 37)),
        ((99, 1), (29, 37)),
        ((16, 1), (29, 37)),
        ((15, 19), (15, 19)),
        ((11, 14), (11, 14)),
        ((8, 10), (8, 10)),
        ((3, 5), (4, 5)),
        ((1, 1), (4, 5)),
    ],
)
def test_a_fraction_has_at_least_the_size_that_is_asked_for(
    least: tuple[int, int], size: tuple[int, int]
) -> None:
    contents = saved(smooth(), "JPEG", quality=95, subsampling="4:4:4")
    shape = read_picture(contents, Wanted(3, least=least)).shape
    assert shape == (*size, 3)
    decoded = read_picture(contents, Wanted(3, least=least)).decode()
    expected = Image.fromarray(smooth()).resize(size[::-1], Image.Resampling.BOX)
    assert np.abs(decoded.astype(int) - np.asarray(expected)).mean() < 30


def test_a_limit_is_that_of_the_whole_picture() -> None:
    with pytest.raises(MalformedImage, match="29 x 37"):
        read_picture(COLOUR, Wanted(3, least=(4, 4), max_pixels=29 * 37 - 1))


@pytest.mark.parametrize("end", stops(range(3, COLOUR.index(b"\xff\xda") + 1)))
def test_a_header_that_ends_anywhere(end: int) -> None:
    with pytest.raises(MalformedImage, match="truncated"):
        read(COLOUR[:end]).decode()


@pytest.mark.parametrize("missing", [1, 2, 10, 200])
def test_truncated_pixels(missing: int) -> None:
    picture = read(COLOUR[: len(COLOUR) - 2 - missing])
    with pytest.raises(MalformedImage, match="truncated"):
        picture.decode()


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (changed(FRAME, b"\xff\xc3"), "cannot be decoded"),
        (changed(FRAME + 1, b"\xd9"), "cannot be decoded"),
        (changed(FRAME + 4, b"\x0c"), "12-bit"),
        (changed(FRAME + 5, b"\0\0"), "cannot be decoded"),
        (changed(FRAME + 9, b"\x02"), "cannot be decoded"),
        (changed(FRAME, b"\xff\xfe"), "cannot be decoded"),
        (COLOUR[:FRAME] + COLOUR[FRAME : FRAME + 19] + COLOUR[FRAME:], "cannot be decoded"),
    ],
)
def test_what_is_refused(contents: bytes, words: str) -> None:
    with pytest.raises(MalformedImage, match=words):
        read(contents).decode()


@pytest.mark.parametrize(("contents", "channels"), [(COLOUR, 4), (CMYK, 1), (CMYK, 4)])
def test_channels_that_are_not_given(contents: bytes, channels: int) -> None:
    with pytest.raises(WrongFeatureType, match=f"not {channels}; ask for one"):
        read(contents, channels)
