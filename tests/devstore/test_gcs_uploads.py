from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.devstore.errors import Refusal
from streamrec.devstore.gcs_uploads import QUANTUM, Session, parse_multipart

KIND = 'multipart/related; boundary="==0=="'


def body(data: bytes, newline: bytes = b"\r\n", about: bytes = b'{"name": "k"}') -> bytes:
    lines = [
        b"--==0==",
        b"Content-Type: application/json; charset=UTF-8",
        b"",
        about,
        b"--==0==",
        b"Content-Type: image/png",
        b"",
        data,
        b"--==0==--",
    ]
    return newline.join(lines)


@given(st.binary(), st.sampled_from([b"\n", b"\r\n"]))
def test_any_content_comes_back(data: bytes, newline: bytes) -> None:
    # A content that ends in CR is told from one before CRLF only where lines end in CRLF.
    if newline == b"\n" and data.endswith(b"\r"):
        data += b"."
    assert parse_multipart(KIND, body(data, newline)) == ({"name": "k"}, "image/png", data)


@pytest.mark.parametrize("data", [b"--==0==", b"\n--==0==\n\n", b"\r\n--==0=="])
def test_a_boundary_in_the_content(data: bytes) -> None:
    assert parse_multipart(KIND, body(data))[2] == data


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("multipart/related", body(b"x")),
        ("multipart/mixed; boundary===0==", body(b"x")),
        (KIND, b""),
        (KIND, b"--==0==--"),
        (KIND, body(b"x")[:-4]),
        (KIND, body(b"x").replace(b"--==0==\r\nContent-Type: image", b"")),
        (KIND, body(b"x", about=b"[]")),
        (KIND, body(b"x").replace(b"UTF-8\r\n\r\n", b"UTF-8\r\n")),
    ],
)
def test_what_is_no_upload(kind: str, data: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        parse_multipart(kind, data)
    assert caught.value.status == 400


@given(st.integers(0, 3 * QUANTUM), st.booleans())
def test_parts_add_up(size: int, known: bool) -> None:
    session = Session("b", "k", {})
    content = bytes(range(256)) * (size // 256 + 1)
    content = content[:size]
    at, complete = 0, False
    while not complete:
        part = content[at : at + QUANTUM]
        last = at + len(part) == size
        total = str(size) if known or last else "*"
        span = f"{at}-{at + len(part) - 1}" if part else "*"
        complete = session.add(f"bytes {span}/{total}", part)
        at += len(part)
        assert complete == last
    assert session.data == content


def test_all_at_once_and_a_question() -> None:
    session = Session("b", "k", {})
    assert not session.add("bytes */5", b"")
    assert session.add(None, b"whole")
    assert session.data == b"whole"


@pytest.mark.parametrize(
    ("span", "data"),
    [
        ("nonsense", b"x"),
        ("bytes 1-1/5", b"x"),
        ("bytes 0-2/5", b"x"),
        ("bytes 0-0/5", b"x"),  # not the last, and no multiple of 256 KiB
        ("bytes 0-0/*", b"x"),
    ],
)
def test_parts_that_do_not_fit(span: str, data: bytes) -> None:
    session = Session("b", "k", {})
    with pytest.raises(Refusal) as caught:
        session.add(span, data)
    assert caught.value.status == 400
    assert not session.data
