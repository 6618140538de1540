from __future__ import annotations

import pytest

from streamrec.formats.examples.wire_format import framed, varint


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


def test_framed() -> None:
    assert framed(b"") == b"\0"
    assert framed(b"x" * 200) == b"\xc8\1" + b"x" * 200
