from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.formats.examples.wire_format import FIRST, framed, varint
from streamrec.kernel.messages import MESSAGES
from tests.kernel.conftest import IMPLEMENTATIONS

KERNELS = st.sampled_from(IMPLEMENTATIONS)
INT64 = st.integers(-(2**63), 2**63 - 1)
EDGES = [(1 << bits) + more for bits in range(0, 63, 7) for more in (-1, 0)]


def encoded(kernel: Any, values: Any, splits: Any = None) -> list[bytes]:
    values = np.asarray(values, np.int64)
    splits = np.arange(len(values) + 1) if splits is None else np.array(splits)
    found: list[bytes] = kernel.varints(values, splits).to_list()
    return found


@pytest.mark.parametrize(
    ("value", "octets"),
    [
        (0, b"\0"),
        (127, b"\x7f"),
        (128, b"\x80\1"),
        (300, b"\xac\2"),
        (2**35, bytes([128] * 5) + b"\1"),
        (-1, bytes([255] * 9) + b"\1"),
    ],
)
def test_known_values(kernel: Any, value: int, octets: bytes) -> None:
    assert encoded(kernel, [value]) == [octets]


@given(KERNELS, st.lists(INT64 | st.sampled_from(EDGES)), st.data())
def test_they_are_what_protobuf_reads(kernel: Any, values: list[int], data: st.DataObject) -> None:
    splits = sorted(data.draw(st.lists(st.integers(0, len(values)), min_size=1)))
    rows = encoded(kernel, values, splits)
    for row, (first, last) in zip(rows, pairwise(splits), strict=True):
        packed = FIRST + framed(row)
        assert list(MESSAGES["Int64List"].FromString(packed).value) == values[first:last]
        assert row == b"".join(varint(value % 2**64) for value in values[first:last])


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7])
def test_parts_are_joined(kernel: Any, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrec.kernel.reference.integers._PART", 3)
    values = [1, 300, -1, 2**40, 0, 128, 5][:count]
    assert encoded(kernel, values) == [varint(value % 2**64) for value in values]


def test_values_that_are_not_contiguous(kernel: Any) -> None:
    every = np.arange(6) * 100
    assert encoded(kernel, every)[::2] == encoded(kernel, every[::2])


@pytest.mark.parametrize("splits", [[1, 0], [-1, 0], [0, 4], [0, 2, 1, 3]])
def test_splits_that_do_not_rise_within_the_values(splits: list[int]) -> None:
    native = next((k for k in IMPLEMENTATIONS if k.__name__.endswith("native")), None)
    if native is not None:
        with pytest.raises(ValueError, match="the splits do not rise"):
            encoded(native, [1, 2, 3], splits)
