from __future__ import annotations

import json
from base64 import b85encode

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import MalformedPosition
from streamrec.plan.packed import pack, unpack

LARGEST = (1 << 63) - 1
ROWS = st.lists(st.lists(st.integers(0, LARGEST), max_size=5), max_size=6)


@given(ROWS)
def test_unpack_gives_what_was_packed(rows: list[list[int]]) -> None:
    text = pack([np.array(row, np.int64) for row in rows])
    assert json.loads(json.dumps(text)) == text
    assert [row.tolist() for row in unpack(text, [len(row) for row in rows])] == rows


def test_small_numbers_take_little() -> None:
    zeros, ones = np.zeros(1000, np.int64), np.full(1000, 255)
    assert len(pack([zeros])) < 4
    assert len(pack([ones])) < 1260
    assert len(pack([ones + 1])) > 2500


@given(ROWS.filter(any), st.data())
def test_other_lengths_are_refused(rows: list[list[int]], data: st.DataObject) -> None:
    rows = [row for row in rows if any(row)]
    text, lengths = pack([np.array(row, np.int64) for row in rows]), [len(row) for row in rows]
    if not rows:
        return
    lengths[data.draw(st.integers(0, len(rows) - 1))] += 9
    with pytest.raises(MalformedPosition, match="'packed'"):
        unpack(text, lengths)
    with pytest.raises(MalformedPosition, match="'packed'"):
        unpack(text[:-1], lengths)


@pytest.mark.parametrize(
    "text", [None, 5, [], "", "\x00", '"""', "é", pack([np.array([1])]) + "00"]
)
def test_what_is_none_is_refused(text: object) -> None:
    with pytest.raises(MalformedPosition, match="'packed'"):
        unpack(text, [1])


@given(st.text(), st.lists(st.integers(0, 4), max_size=4))
def test_hostile_texts_never_give_anything_but_numbers(text: str, lengths: list[int]) -> None:
    try:
        rows = unpack(text, lengths)
    except MalformedPosition:
        return
    assert [len(row) for row in rows] == lengths
    assert all((row >= 0).all() for row in rows)


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(MalformedPosition, match="something else than its numbers"):
        unpack(b85encode(b"\x08" + b"\xff" * 8).decode(), [1])
