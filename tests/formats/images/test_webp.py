from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import features

from streamrec.errors import ConfigError, MalformedImage, PictureTooLarge, WrongFeatureType
from streamrec.formats.images import pillow
from streamrec.formats.images.image import read_picture
from streamrec.formats.images.picture import OutputForm
from tests.formats.pictures.encoded import animation, saved, smooth

if not features.check("webp"):
    pytest.skip("this Pillow has no WebP", allow_module_level=True)

RGB, RGBA = smooth(), smooth(channels=4)
LOSSLESS = saved(RGB, "WEBP", lossless=True)
LOSSY = saved(RGB, "WEBP", quality=90)
CLEAR = saved(RGBA, "WEBP", lossless=True, exact=True)
EXTENDED = saved(RGBA, "WEBP", quality=90)
MOVING = animation("WEBP")
ALL = {
    "lossless": (LOSSLESS, 3),
    "lossy": (LOSSY, 3),
    "clear": (CLEAR, 4),
    "extended": (EXTENDED, 4),
    "moving": (MOVING, 4),
}


def read(contents: bytes, channels: int = 0, *, animation: bool = True, most: int = 9999) -> Any:
    picture = read_picture(contents, OutputForm(channels, animation=animation, max_pixels=most))
    decoded = picture.decode()
    assert decoded.shape == picture.shape
    return decoded


@pytest.mark.parametrize("kind", ALL)
def test_shapes(kind: str) -> None:
    contents, channels = ALL[kind]
    frames = 3 if kind == "moving" else 1
    assert read(contents).shape == (frames, 29, 37, channels)
    assert read(contents, channels, animation=False).shape == (29, 37, channels)
    np.testing.assert_array_equal(read(contents)[0], read(contents, animation=False))


def test_pixels() -> None:
    np.testing.assert_array_equal(read(LOSSLESS, animation=False), RGB)
    np.testing.assert_array_equal(read(CLEAR, animation=False), RGBA)
    assert np.abs(read(LOSSY, animation=False).astype(int) - RGB).mean() < 8


def test_an_animation_without_transparency_has_four_channels() -> None:
    decoded = read(animation("WEBP", mode="RGB"))
    assert decoded.shape == (3, 29, 37, 4)
    assert (decoded[..., 3] == 255).all()


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("end", [12, 16, 20, 25, 29, 35, 60])
def test_truncated_anywhere(kind: str, end: int) -> None:
    with pytest.raises(MalformedImage):
        read(ALL[kind][0][:end])


def test_more_pixels_than_allowed() -> None:
    with pytest.raises(MalformedImage, match="max_pixels"):
        read(LOSSY, most=29 * 37 - 1)
    with pytest.raises(MalformedImage, match="3 x 29 x 37"):
        read(MOVING, most=29 * 37 * 3 - 1)
    assert read(MOVING, animation=False, most=29 * 37).shape == (29, 37, 4)


def test_a_canvas_that_would_take_gigabytes() -> None:
    contents = EXTENDED[:24] + b"\xff" * 6 + EXTENDED[30:]
    with pytest.raises(MalformedImage, match="max_pixels"):
        read(contents, animation=False, most=1 << 26)


@pytest.mark.parametrize(("kind", "channels"), [("lossy", 4), ("clear", 3), ("clear", 1)])
def test_channels_that_are_not_given(kind: str, channels: int) -> None:
    with pytest.raises(WrongFeatureType, match=f"not {channels}"):
        read(ALL[kind][0], channels)


def test_an_unknown_chunk() -> None:
    with pytest.raises(MalformedImage, match="cannot be decoded"):
        read(LOSSY[:12] + b"VP9 " + LOSSY[16:])


def test_a_pillow_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "check", lambda name: False)
    with pytest.raises(ConfigError, match="has no WebP"):
        read(LOSSY)


@pytest.mark.parametrize("lossless", [False, True])
def test_the_sides_are_known_before_pillow_sets_the_canvas_aside(
    monkeypatch: pytest.MonkeyPatch, lossless: bool
) -> None:
    contents = saved(np.zeros((300, 20, 3), np.uint8), "WEBP", lossless=lossless)
    assert contents[12:16] == (b"VP8L" if lossless else b"VP8 ")
    monkeypatch.setattr(pillow, "open_picture", lambda *_: pytest.fail("it is opened"))
    with pytest.raises(PictureTooLarge, match="300 x 20 = 6,000 pixels"):
        read(contents, most=5999)
