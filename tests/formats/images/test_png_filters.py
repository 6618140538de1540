"""Rows are filtered as the specification says, each by the filter with the least sum."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from streamrec.formats.images import png_filters
from streamrec.formats.images.png_filters import deflated

ROWS = st.integers(1, 8).flatmap(
    lambda pixel: st.tuples(
        st.just(pixel),
        npst.arrays(
            np.uint8,
            st.tuples(st.integers(1, 9), st.integers(1, 6).map(lambda width: width * pixel)),
        ),
    )
)


def paeth(left: int, above: int, corner: int) -> int:
    """PNG, clause 9.4."""
    guess = left + above - corner
    return min((left, above, corner), key=lambda each: abs(guess - each))


def filtered(kind: int, row: list[int], above: list[int], pixel: int) -> list[int]:
    """PNG, clause 9.2."""
    lefts, corners = [0] * pixel + row, [0] * pixel + above
    guesses = [
        (0, a, b, (a + b) // 2, paeth(a, b, c))[kind]
        for a, b, c in zip(lefts, above, corners, strict=False)
    ]
    return [(x - guess) % 256 for x, guess in zip(row, guesses, strict=True)]


def cost(differences: list[int]) -> int:
    return sum(min(each, 256 - each) for each in differences)


@given(ROWS, st.sampled_from([1, 20, 1 << 18]))
def test_each_row_has_the_least_sum(case: tuple[int, Any], band: int) -> None:
    pixel, rows = case
    whole = png_filters._BAND
    png_filters._BAND = band
    try:
        found = zlib.decompress(deflated(rows, pixel, -1))
    finally:
        png_filters._BAND = whole
    height, width = len(rows), rows.shape[1] // pixel
    usable = [
        kind for kind in range(5) if (height > 1 or kind < 2) and (width > 1 or kind in (0, 2))
    ]
    above = [0] * rows.shape[1]
    for number, row in enumerate(rows.tolist()):
        begin = number * (1 + len(row))
        each = {kind: filtered(kind, row, above, pixel) for kind in usable}
        best = min(usable, key=lambda kind: cost(each[kind]))
        assert list(found[begin : begin + 1 + len(row)]) == [best, *each[best]]
        above = row


@pytest.mark.parametrize("level", range(-1, 10))
def test_the_data_of_each_level_is_read_back(level: int) -> None:
    """Also where a header's check had to change, which stands beside two flags."""
    for size in (100, 1 << 14, 1 << 15):
        rows = np.zeros((1, size), np.uint8)
        assert zlib.decompress(deflated(rows, 1, level))[1:] == rows.tobytes()


def test_the_header_says_the_smallest_window() -> None:
    for size, window in ((1, 0), (255, 0), (256, 1), (5000, 5), (1 << 15, 7)):
        octets = deflated(np.zeros((1, size), np.uint8), 1, -1)
        assert octets[0] == window << 4 | zlib.DEFLATED
        assert (octets[0] << 8 | octets[1]) % 31 == 0


@pytest.mark.parametrize(
    ("shape", "bands"),
    [((9, 64), [4, 4, 1]), ((8, 64), [4, 4]), ((3, 300), [1, 1, 1]), ((2, 128), [2])],
)
def test_a_band_holds_no_more_bytes_than_its_limit(
    shape: tuple[int, int], bands: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless one row alone has more."""
    monkeypatch.setattr(png_filters, "_BAND", 256)
    found = png_filters._filtered(np.zeros(shape, np.uint8), 1)
    assert [len(each) // (1 + shape[1]) for each in found] == bands
