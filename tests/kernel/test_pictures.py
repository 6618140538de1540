"""The filters of PNG's rows, undone by each kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tests.formats.pictures.filtering import filtered
from tests.kernel.conftest import IMPLEMENTATIONS

PIXELS = (1, 2, 3, 4, 6, 8)
ROWS = st.sampled_from(PIXELS).flatmap(
    lambda pixel: st.tuples(
        st.just(pixel),
        npst.arrays(
            np.uint8,
            st.tuples(st.integers(0, 6), st.integers(0, 9).map(lambda width: width * pixel)),
        ),
    )
)


def filtered_rows(rows: Any, kinds: list[int], pixel: int) -> bytes:
    above, octets = [0] * rows.shape[1], b""
    for kind, row in zip(kinds, rows.tolist(), strict=True):
        octets += bytes([kind, *filtered(kind, row, above, pixel)])
        above = row
    return octets


@given(st.sampled_from(IMPLEMENTATIONS), ROWS, st.data())
def test_rows_come_back(kernel: Any, case: tuple[int, Any], data: st.DataObject) -> None:
    pixel, rows = case
    kinds = data.draw(st.lists(st.integers(0, 4), min_size=len(rows), max_size=len(rows)))
    out = np.full(rows.shape, 7, np.uint8)
    assert kernel.unfilter(filtered_rows(rows, kinds, pixel), len(rows), pixel, out)
    assert out.tolist() == rows.tolist()


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("pixel", PIXELS)
def test_every_filter_of_many_pixels(kernel: Any, kind: int, pixel: int) -> None:
    rows = np.random.default_rng(kind).integers(0, 256, (3, 40 * pixel), np.uint8)
    out = np.empty_like(rows)
    assert kernel.unfilter(filtered_rows(rows, [kind] * 3, pixel), 3, pixel, out)
    assert out.tolist() == rows.tolist()


@pytest.mark.parametrize("kind", [5, 255])
@pytest.mark.parametrize("row", [0, 1])
def test_a_filter_that_there_is_not(kernel: Any, kind: int, row: int) -> None:
    octets = bytearray(8)
    octets[4 * row] = kind
    assert not kernel.unfilter(bytes(octets), 2, 3, np.empty((2, 3), np.uint8))
