from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from streamrec.errors import MalformedImage, PictureTooLarge, WrongFeatureType
from streamrec.formats.images import pillow
from streamrec.formats.images.image import read_picture
from streamrec.formats.images.picture import OutputForm
from tests.by_day import stops
from tests.formats.pictures.encoded import (
    PALETTE,
    animation,
    control,
    frame,
    made_gif,
    saved,
    smooth,
)

STILL = saved(smooth(), "GIF")
MOVING = animation("GIF")


def read(contents: bytes, channels: int = 0, *, animation: bool = True, most: int = 9999) -> Any:
    picture = read_picture(contents, OutputForm(channels, animation=animation, max_pixels=most))
    decoded = picture.decode()
    assert decoded.shape == picture.shape
    return decoded


RED, GREEN, BLACK = [255, 0, 0], [0, 255, 0], [0, 0, 0]


def test_one_frame() -> None:
    assert read(made_gif(frame([1, 2]))).tolist() == [[[RED, GREEN]]]
    assert read(made_gif(frame([1, 2])), animation=False).tolist() == [[RED, GREEN]]


def test_transparent_pixels_keep_those_of_the_frame_before() -> None:
    contents = made_gif(frame([1, 2]), control(2), frame([2, 1]), frame([2, 1]))
    assert read(contents).tolist() == [[[RED, GREEN]], [[RED, RED]], [[GREEN, RED]]]


def test_below_the_first_frame_is_black() -> None:
    assert read(made_gif(control(1), frame([1, 2]))).tolist() == [[[BLACK, GREEN]]]
    assert read(made_gif(frame([1], 1, width=1), frame([2, 2]))).tolist() == [
        [[BLACK, RED]],
        [[GREEN, GREEN]],
    ]


def test_what_lies_outside_is_cut() -> None:
    assert read(made_gif(frame([1, 2], 1))).tolist() == [[[BLACK, RED]]]
    assert read(made_gif(frame([1, 2], 0, 7))).tolist() == [[[BLACK, BLACK]]]
    assert read(made_gif(frame([1, 2], 65535, 65535))).tolist() == [[[BLACK, BLACK]]]


@pytest.mark.parametrize(("width", "height"), [(2, 1), (0, 9), (65535, 65535)])
def test_the_canvas_is_as_large_as_the_largest_frame(width: int, height: int) -> None:
    frames = frame([1], width=1), frame([2, 2, 1], width=1), frame([1, 2])
    contents = made_gif(*frames, width=width, height=height)
    assert read(contents).shape == (3, 3, 2, 3)
    assert read(contents)[2].tolist() == [[RED, GREEN], [GREEN, BLACK], [RED, BLACK]]
    assert read(contents, animation=False).tolist() == read(contents)[0].tolist()
    assert read(contents[:-5], animation=False).shape == (3, 1, 3)


def test_a_colour_beyond_the_palette_is_refused_where_it_shows() -> None:
    contents = made_gif(frame([1, 3]), palette=PALETTE[:6]).replace(b"\x81\0\0", b"\x80\0\0", 1)
    with pytest.raises(MalformedImage, match="a colour beyond its palette"):
        read(contents)
    seen = made_gif(control(3), frame([1, 3]), palette=PALETTE[:6]).replace(
        b"\x81\0\0", b"\x80\0\0", 1
    )
    assert read(seen).tolist() == [[[RED, BLACK]]]


def test_a_palette_of_its_own() -> None:
    own = frame([1, 0], flags=0x81)
    at = 10
    contents = made_gif(own[:at] + PALETTE[::-1] + own[at:])
    assert read(contents).tolist() == [[[GREEN, [255, 0, 0]]]]


def test_rows_of_an_interlaced_frame() -> None:
    contents = made_gif(frame([0, 1, 2, 3], width=1, flags=0x40), width=1, height=4)
    # The rows come as 0, then 2, then 1 and 3.
    assert read(contents)[0, :, 0].tolist() == [BLACK, GREEN, RED, [0, 0, 255]]


@pytest.mark.parametrize("contents", [STILL, MOVING], ids=["still", "moving"])
def test_the_first_frame_is_that_of_all(contents: bytes) -> None:
    np.testing.assert_array_equal(read(contents)[0], read(contents, animation=False))


def test_the_frames_of_a_real_one() -> None:
    assert read(MOVING).shape == (3, 29, 37, 3)
    assert np.abs(read(STILL)[0].astype(int) - smooth()).mean() < 12


@pytest.mark.parametrize("end", stops(range(4, len(STILL), 7), every=4))
def test_truncated_anywhere(end: int) -> None:
    with pytest.raises(MalformedImage, match="truncated"):
        read(STILL[:end])


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (made_gif(), "cannot be decoded"),
        (made_gif(b"\x17"), "cannot be decoded"),
        (made_gif(frame([1, 2]).replace(b"\x02\x02", b"\x09\x02")), "cannot be decoded"),
        (made_gif(frame([1, 2], width=1)[:5] + bytes(4) + frame([1])[9:]), "cannot be decoded"),
        (made_gif(frame([1, 2])[:-4] + b"\x01\x04\0"), "cannot be decoded"),
    ],
)
def test_what_is_refused(contents: bytes, words: str) -> None:
    with pytest.raises(MalformedImage, match=words):
        read(contents)


def test_frames_larger_than_allowed() -> None:
    huge = b"\x2c" + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0) + b"\x02\x01\x04\0"
    with pytest.raises(MalformedImage, match=r"65535 x 65535 .* raise max_pixels"):
        read(made_gif(huge), most=1 << 26)
    with pytest.raises(MalformedImage, match=r"max_pixels"):
        read(made_gif(*[frame([1, 2])] * 6), most=11)
    assert len(read(made_gif(*[frame([1, 2])] * 6), most=12)) == 6


@pytest.mark.parametrize("channels", [1, 4])
def test_channels_that_are_not_given(channels: int) -> None:
    with pytest.raises(WrongFeatureType, match="0 or 3"):
        read(STILL, channels)


@pytest.mark.parametrize("animation", [False, True])
def test_more_frames_than_allowed(animation: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pillow, "MOST_FRAMES", 3)
    frames = [frame([1, 2])] * 4
    assert read(made_gif(*frames[:3])).tolist() == [[[RED, GREEN]]] * 3
    with pytest.raises(PictureTooLarge, match="has more than the 3 frames"):
        read(made_gif(*frames), animation=animation)


def test_bytes_between_blocks_are_passed_over() -> None:
    contents = made_gif(b"\0\1\2\xff" * 5, frame([1, 2]), b"\0" * 7, frame([2, 1]))
    assert read(contents).tolist() == [[[RED, GREEN]], [[GREEN, RED]]]
