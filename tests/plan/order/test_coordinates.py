from __future__ import annotations

import numpy as np
import pytest

from streamrec.plan.order.coordinates import LANE, NAMES, POINT, Coordinates, flat, structured


def test_the_order_of_a_lanes_numbers_is_that_of_a_state() -> None:
    assert NAMES == ("extent", "offset", "record", "crc", "window", "row", "taken", "part")
    assert LANE.names == NAMES
    assert POINT.names == NAMES[:4]


def test_numbers_are_a_lanes_own_and_then_those_of_its_sources() -> None:
    at = Coordinates(1, 2, 3, 4, 5, 6, 7, 8, sources=((9, 10, 11, 12), (13, 14, 15, 16)))
    assert at.numbers == list(range(1, 17))


@pytest.mark.parametrize(("dtype", "shape"), [(LANE, (8, 4)), (LANE, (8, 1)), (POINT, (4, 5, 2))])
def test_rows_come_back(dtype: np.dtype[np.void], shape: tuple[int, ...]) -> None:
    rows = np.arange(np.prod(shape)).reshape(shape)
    array = structured(rows, dtype)
    assert array.shape == shape[:0:-1]
    assert array["record"].T.tolist() == rows[2].tolist()
    assert flat(array).tolist() == rows.tolist()
    assert not np.shares_memory(array, rows)
