from __future__ import annotations

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import MalformedImage
from streamrec.formats.images.image import read_picture
from streamrec.formats.images.picture import OutputForm
from streamrec.formats.images.resize import at_least, fill_resized
from tests.formats.pictures.encoded import saved, smooth

SIDES = st.integers(1, 40)


@given(height=SIDES, width=SIDES, target=st.tuples(SIDES, SIDES), channels=st.sampled_from([1, 3]))
def test_pillows_bilinear(height: int, width: int, target: tuple[int, int], channels: int) -> None:
    pixels = smooth(height, width, channels)
    out = np.empty((*target, channels), np.uint8)
    fill_resized(read_picture(saved(pixels, "PNG"), OutputForm(channels)), out)
    expected = PIL.Image.fromarray(pixels).resize(target[::-1], PIL.Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(out, np.asarray(expected).reshape(out.shape))


def test_fills_a_part_of_an_array() -> None:
    rows = np.zeros((3, 4, 5, 3), np.uint8)
    fill_resized(read_picture(saved(smooth(), "JPEG"), OutputForm(3)), rows[1])
    assert [row.any() for row in rows] == [False, True, False]


def test_corrupt_pixels() -> None:
    picture = read_picture(saved(smooth(), "JPEG")[:-9], OutputForm(3))
    with pytest.raises(MalformedImage, match="truncated"):
        fill_resized(picture, np.empty((4, 5, 3), np.uint8))


def test_the_least_size_to_decode() -> None:
    assert at_least(None) == (0, 0)
    assert at_least((4, 5)) == (8, 10)
