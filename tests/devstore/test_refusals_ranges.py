from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamrec.devstore.refusals import Refusal, parse_copy_range, parse_range


def test_the_message_is_s3s_own_unless_given() -> None:
    assert Refusal(404, "NoSuchKey").message == "The specified key does not exist."
    assert Refusal(404, "NoSuchKey", "gone").message == "gone"
    assert Refusal(499, "Odd").message == "Odd"


def test_it_says_what_it_is() -> None:
    error = Refusal(503, "SlowDown", headers={"Retry-After": "1"})
    assert str(error).startswith("503 SlowDown: ")
    assert error.headers == {"Retry-After": "1"}


SIZES = st.integers(0, 50)
PLACES = st.integers(0, 60)


def selected(header: str | None, size: int) -> list[int] | str:
    """Return the positions that the header selects, or the status of the answer."""
    try:
        span = parse_range(header, size)
    except Refusal:
        return "416"
    return "whole" if span is None else list(span)


@given(PLACES, PLACES, SIZES)
def test_first_and_last(first: int, last: int, size: int) -> None:
    expected = [at for at in range(size) if first <= at <= last]
    outcome = selected(f"bytes={first}-{last}", size)
    if last < first:
        assert outcome == "whole"
    else:
        assert outcome == (expected or "416")


@given(PLACES, SIZES)
def test_from_first_to_the_end(first: int, size: int) -> None:
    assert selected(f"bytes={first}-", size) == (list(range(size))[first:] or "416")


@given(PLACES, SIZES)
@example(0, 10)
def test_suffix(count: int, size: int) -> None:
    expected = list(range(size))[-count:] if count else []
    assert selected(f"bytes=-{count}", size) == (expected or "416")


@given(st.text("bytes=0123456789-, x", max_size=20), SIZES)
def test_any_header_gives_a_span_within_the_object_or_none(header: str, size: int) -> None:
    try:
        span = parse_range(header, size)
    except Refusal:
        return
    assert span is None or 0 <= span.start < span.stop <= size


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "bytes",
        "bytes=",
        "bytes=-",
        "bytes=a-b",
        "bytes=1",
        "bytes=1-2-3",
        "bytes=+1-2",
        "bytes=1 - 2",
        "bytes=0x1-0x2",
        "bytes=٣-٤",
        "bytes=5-4",
        "bytes=0-1,4-5",
        "bytes 0-1",
        "items=0-1",
        "bytes=" + "9" * 4001 + "-",
    ],
)
def test_what_is_not_one_range_is_ignored(header: str | None) -> None:
    assert parse_range(header, 10) is None


@pytest.mark.parametrize("header", ["bytes=2-4", "Bytes=2-4", "BYTES= 2-4 ", "bytes =02-004"])
def test_spellings_of_one_range(header: str) -> None:
    assert parse_range(header, 10) == range(2, 5)


@pytest.mark.parametrize("header", ["bytes=0-", "bytes=0-0", "bytes=-1", "bytes=5-9"])
def test_no_range_of_an_empty_object_can_be_satisfied(header: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_range(header, 0)
    assert caught.value.headers == {"Content-Range": "bytes */0"}


def test_numbers_of_any_length_are_understood() -> None:
    assert parse_range("bytes=0-" + "9" * 4000, 10) == range(10)
    assert parse_range("bytes=-" + "9" * 4000, 10) == range(10)


@given(PLACES, PLACES, SIZES)
def test_a_range_to_copy_lies_in_the_object(first: int, last: int, size: int) -> None:
    header = f"bytes={first}-{last}"
    if first <= last < size:
        assert parse_copy_range(header, size) == range(first, last + 1)
        return
    with pytest.raises(Refusal, match=f"400 InvalidArgument: .* source object of size: {size}"):
        parse_copy_range(header, size)


@given(st.text("bytes=0123456789-, x\n", max_size=20), SIZES)
def test_any_header_of_a_copy(header: str, size: int) -> None:
    try:
        span = parse_copy_range(header, size)
    except Refusal as refusal:
        assert refusal.code == "InvalidArgument"
        return
    assert 0 <= span.start < span.stop <= size


def test_a_copy_without_a_range_is_whole() -> None:
    assert parse_copy_range(None, 10) == range(10)
    assert parse_copy_range(None, 0) == range(0)
