from __future__ import annotations

from hashlib import blake2b

from hypothesis import given
from hypothesis import strategies as st

from streamrec.plan.order.digests import digests, views
from streamrec.values.columns import BytesColumn


@given(st.lists(st.binary(max_size=200)), st.sampled_from([1, 2]))
def test_hashes_of_strings(strings: list[bytes], words: int) -> None:
    expected = [blake2b(string, digest_size=8 * words).digest() for string in strings]
    column = BytesColumn.of([b"before", *strings])
    part = BytesColumn(column.values, column.offsets[1:])
    assert [bytes(view) for view in views(part)] == strings
    found = digests(part, words)
    assert found.shape == (len(strings), words)
    assert [row.tobytes() for row in found] == expected
