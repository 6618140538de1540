from __future__ import annotations

import json
import tracemalloc
from base64 import b85encode
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from streamrec.errors import (
    MalformedPosition,
)
from streamrec.plan.order.coordinates import (
    LANE,
    NAMES,
    POINT,
    WIDEST,
    Coordinates,
    flat,
    pack,
    structured,
    unpack,
)


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


if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]


MOST_PACKED = (1 << WIDEST) - 1
PACKED = st.one_of(st.integers(0, 9), st.integers(0, MOST_PACKED))
ROWS = arrays(np.int64, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=PACKED)
EDGES = np.array(
    [[0, MOST_PACKED], [MOST_PACKED, MOST_PACKED], [MOST_PACKED - 1, MOST_PACKED], [0, 0]]
)


def text_of(*widths: int, rest: bytes = b"", size: int = 0) -> str:
    heads = b"".join(bytes((width, size)) + bytes(size) for width in widths)
    return b85encode(heads + rest).decode()


@given(ROWS)
def test_unpack_gives_what_was_packed(rows: Numbers) -> None:
    text = pack(rows)
    assert json.loads(json.dumps(text)) == text
    again = unpack(text, *rows.shape)
    assert again.dtype == np.int64
    assert np.array_equal(again, rows)


def test_so_it_does_at_the_edges() -> None:
    assert np.array_equal(unpack(pack(EDGES), *EDGES.shape), EDGES)


@given(ROWS)
def test_the_size_is_what_the_numbers_range_over(rows: Numbers) -> None:
    bits = sum((int(row.max()) - int(row.min())).bit_length() for row in rows) * rows.shape[1]
    heads = sum(2 + -(-int(row.min()).bit_length() // 8) for row in rows)
    assert len(pack(rows)) == -(-5 * (heads + -(-bits // 8)) // 4)


@given(ROWS, st.sampled_from([(0, 1), (1, 0), (0, -1), (-1, 0), (7, 300)]))
def test_another_number_of_rows_or_columns_is_refused(rows: Numbers, more: tuple[int, int]) -> None:
    """Unless none of the numbers differ, so that none of them stands there."""
    shape = len(rows) + more[0], rows.shape[1] + more[1]
    constant = (rows == rows[:, :1]).all()
    if min(shape) and (more[0] or not constant):
        wide = np.concatenate([rows, np.full((len(rows), 9), 1 << 40) * np.arange(9)], axis=1)
        with pytest.raises(MalformedPosition, match="'packed' does not hold"):
            unpack(pack(wide), shape[0], wide.shape[1] + more[1])


@pytest.mark.parametrize(
    "text",
    [
        None, 5, [], b"0000000000", "", "\x00", '"""', "é", "~~~~~",
        pack(EDGES)[:-5], pack(EDGES) + "00000", pack(EDGES[:3]),
        text_of(WIDEST + 1, 0, 0, 0, rest=b"\xff" * 15), text_of(255, 255, 255, 255),
        text_of(0, 0, 0, 0, size=8), text_of(0, 0, 0), text_of(0, 0, 0, rest=b"\0\7\0"),
    ],
)  # fmt: skip
def test_what_is_none_is_refused(text: object) -> None:
    with pytest.raises(MalformedPosition, match="'packed'"):
        unpack(text, *EDGES.shape)


@given(st.one_of(st.text(), st.binary().map(lambda data: b85encode(data).decode())))
def test_hostile_texts_never_give_anything_but_numbers(text: str) -> None:
    for shape in ((1, 1), (1, 4), (2, 3)):
        try:
            rows = unpack(text, *shape)
        except MalformedPosition:
            continue
        assert rows.shape == shape
        assert (rows >= 0).all()


@given(ROWS, st.data())
def test_any_damage_is_refused_or_read(rows: Numbers, data: st.DataObject) -> None:
    text = pack(rows)
    at = data.draw(st.integers(0, len(text) - 1))
    text = text[:at] + data.draw(st.characters(codec="ascii")) + text[at + 1 :]
    try:
        again = unpack(text, *rows.shape)
    except MalformedPosition:
        return
    assert again.shape == rows.shape
    assert (again >= 0).all()


@pytest.mark.parametrize("heads", [[0] * 8, [WIDEST] * 8, [WIDEST] + [0] * 7, [255] * 8])
def test_a_short_text_never_becomes_much_more_than_its_numbers(heads: list[int]) -> None:
    text, columns = text_of(*heads, rest=b"\xff" * 64), 1 << 16
    tracemalloc.start()
    try:
        unpack(text, 8, columns)
    except MalformedPosition:
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    else:
        assert tracemalloc.get_traced_memory()[1] < 4 * 8 * 8 * columns
    finally:
        tracemalloc.stop()
