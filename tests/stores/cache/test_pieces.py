from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.stores.cache.pieces import Piece, end_of_gap, key_of, piece_at


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://user:secret@host/x", "https://host/x"),
        (
            "https://host/x?X-Amz-Signature=1&X-Amz-Date=2&part=3",
            "https://host/x?part=3&X-Amz-Signature=4&X-Amz-Date=5",
        ),
        ("https://host/x#here", "https://host/x"),
    ],
)
def test_credentials_are_no_part_of_a_name(one: str, other: str) -> None:
    assert key_of(one, '"1"') == key_of(other, "1")


@pytest.mark.parametrize(
    ("url", "etag", "endpoint"),
    [
        ("https://host/x?part=4", "1", ""),
        ("https://host/y?part=3", "1", ""),
        ("https://host/x?part=3", "2", ""),
        ("https://host/x?part=3", "1", "http://127.0.0.1"),
        ("https://host/x", "1", ""),
    ],
)
def test_another_object_has_another_name(url: str, etag: str, endpoint: str) -> None:
    assert key_of(url, etag, endpoint) != key_of("https://host/x?part=3", "1")


SPANS = st.tuples(st.integers(0, 30), st.integers(1, 10))


@given(st.lists(SPANS, max_size=6), st.integers(0, 30), st.integers(1, 20))
def test_a_range_is_covered_by_pieces_and_gaps(
    spans: list[tuple[int, int]], start: int, length: int
) -> None:
    pieces = [Piece("k", begin, begin + size, 50) for begin, size in spans]
    at, stop = start, start + length
    while at < stop:
        piece = piece_at(pieces, at)
        if piece is None:
            end = end_of_gap(pieces, at, stop)
            assert not any(one.begin <= byte < one.end for one in pieces for byte in range(at, end))
        else:
            assert piece.begin <= at < piece.end
            end = min(stop, piece.end)
        assert end > at
        at = end
    assert at == stop
