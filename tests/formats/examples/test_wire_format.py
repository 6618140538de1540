from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.formats.examples import wire_format
from streamrec.formats.examples.wire_format import FIRST, framed, varint, varints
from streamrec.kernel.messages import MESSAGES

pytestmark = pytest.mark.both_kernels

INT64 = st.integers(-(2**63), 2**63 - 1)
EDGES = [(1 << bits) + more for bits in range(0, 63, 7) for more in (-1, 0)]


@pytest.mark.parametrize(
    ("value", "octets"),
    [
        (0, b"\0"),
        (127, b"\x7f"),
        (128, b"\x80\1"),
        (300, b"\xac\2"),
        (2**35, bytes([128] * 5) + b"\1"),
    ],
)
def test_a_varint(value: int, octets: bytes) -> None:
    assert varint(value) == octets
    assert varints(np.array([value])).to_list() == [octets]


@given(values=st.lists(INT64 | st.sampled_from(EDGES)))
def test_varints_are_what_protobuf_reads(values: list[int]) -> None:
    column = varints(np.array(values, np.int64))
    packed = FIRST + framed(column.values.tobytes())
    assert list(MESSAGES["Int64List"].FromString(packed).value) == values
    assert column.to_list() == [varint(value % 2**64) for value in values]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7])
def test_parts_are_joined(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_format, "_PART", 3)
    values = np.array([1, 300, -1, 2**40, 0, 128, 5])[:count]
    assert varints(values).to_list() == [varint(value % 2**64) for value in values.tolist()]


def test_values_that_are_not_contiguous() -> None:
    assert (
        varints(np.arange(6) * 100).to_list()[::2] == varints((np.arange(6) * 100)[::2]).to_list()
    )


def test_framed() -> None:
    assert framed(b"") == b"\0"
    assert framed(b"x" * 200) == b"\xc8\1" + b"x" * 200
