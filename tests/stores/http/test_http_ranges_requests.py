from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ObjectChanged, StoreError, StoreMisbehaved
from streamrec.stores.http.http_ranges import MAX_SKIP, RangedGet, check_response, size_from_416


def request(start: int, stop: int, etag: str | None = None) -> RangedGet:
    return RangedGet("s3://b/x", "http://h/x?X-Amz-Signature=secret", start, stop, etag)


@pytest.mark.parametrize(
    ("etag", "sent"),
    [(None, None), ('"a"', '"a"'), ("a", '"a"'), ('W/"a"', None)],
)
def test_headers(etag: str | None, sent: str | None) -> None:
    headers = request(5, 10, etag).headers()
    assert headers.pop("Range") == "bytes=5-9"
    assert headers.get("If-Match") == sent
    extra = RangedGet("x", "x", 0, 1, extra={"X-Token": "secret"})
    assert extra.headers() == {"Range": "bytes=0-0", "X-Token": "secret"}
    assert "secret" not in repr(extra) + repr(request(0, 1))


def test_empty_range_asks_for_a_byte() -> None:
    assert request(5, 5).headers()["Range"] == "bytes=5-5"


@given(size=st.integers(1, 1000), start=st.integers(0, 999), count=st.integers(0, 1000))
def test_right_answers(size: int, start: int, count: int) -> None:
    start = min(start, size - 1)
    asked = request(start, start + count)
    last = min(start + max(count, 1), size) - 1
    headers = {"Content-Range": f"bytes {start}-{last}/{size}", "ETag": '"a"'}
    headers["Content-Length"] = str(last + 1 - start)
    length = min(start + count, size) - start
    for status in (200, 206):
        answer = check_response(asked, status, headers)
        assert (answer.info.size, answer.info.etag) == (size, '"a"')
        assert (answer.skip, answer.length) == (0, length)
    whole = check_response(asked, 200, {"Content-Length": str(size)})
    assert (whole.info.size, whole.skip) == (size, start)
    assert whole.length == length


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_other_ranges_are_refused(start: int, last: int, size: int) -> None:
    headers = {"Content-Range": f"bytes {start}-{last}/{size}"}
    if start == 10 and last + 1 == min(20, size):
        assert check_response(request(10, 20), 206, headers).length == last - 9
    else:
        with pytest.raises(StoreMisbehaved):
            check_response(request(10, 20), 206, headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Range": "bytes 0-9/*"},
        {"Content-Range": "bytes */10"},
        {"Content-Range": "0-9/10"},
        {"Content-Range": "bytes 0-9/9999999999999999999999"},
        {"Content-Range": "bytes 0-9/10", "Content-Length": "9"},
    ],
)
def test_nonsense_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(StoreMisbehaved) as caught:
        check_response(request(0, 10), 206, headers)
    assert caught.value.url == "s3://b/x"


def test_whole_object_only_where_little_is_thrown_away() -> None:
    size = {"Content-Length": str(1 << 40)}
    assert check_response(request(MAX_SKIP, MAX_SKIP + 1), 200, size).skip == MAX_SKIP
    with pytest.raises(StoreMisbehaved, match="ignores Range"):
        check_response(request(MAX_SKIP + 1, MAX_SKIP + 2), 200, size)
    with pytest.raises(StoreMisbehaved, match="neither"):
        check_response(request(0, 1), 200, {})


@pytest.mark.parametrize("encoding", ["", "identity", "Identity", "aws-chunked"])
def test_plain_encodings(encoding: str) -> None:
    headers = {"Content-Length": "5", "Content-Encoding": encoding}
    assert check_response(request(0, 5), 200, headers).length == 5


@pytest.mark.parametrize(
    ("written", "encoding"),
    [
        ("gzip", "gzip"),
        ("X-GZIP", "x-gzip"),
        ("deflate", "deflate"),
        ("zstd", "zstd"),
        ("aws-chunked, gzip", "gzip"),
        ("identity", None),
    ],
)
def test_an_encoded_object_is_a_compressed_shard(written: str, encoding: str | None) -> None:
    headers = {"Content-Length": "5", "Content-Encoding": written}
    assert check_response(request(0, 5), 200, headers).info.encoding == encoding


@pytest.mark.parametrize("encoding", ["br", "compress", "gzip, gzip", "gzip,br"])
def test_other_encodings_are_refused(encoding: str) -> None:
    headers = {"Content-Length": "5", "Content-Encoding": encoding}
    with pytest.raises(
        StoreError, match=r"Content-Encoding \w+.* is not supported; store it with none"
    ):
        check_response(request(0, 5), 200, headers)


@pytest.mark.parametrize(
    ("headers", "encoding"),
    [
        ({}, None),
        ({"Content-Encoding": "GZIP "}, "gzip"),
        ({"Content-Encoding": "gzip", "x-goog-stored-content-encoding": "gzip"}, "gzip"),
        ({"x-goog-stored-content-encoding": "identity"}, None),
    ],
)
def test_encoded_objects_where_ranges_are_those_of_what_is_stored(
    headers: dict[str, str], encoding: str | None
) -> None:
    answer = check_response(request(0, 5), 200, {"Content-Length": "5", **headers})
    assert answer.info.encoding == encoding


@pytest.mark.parametrize(("sent", "stored"), [("", "gzip"), ("gzip", "identity"), ("br", "gzip")])
def test_an_encoding_that_is_not_the_stored_one(sent: str, stored: str) -> None:
    headers = {"Content-Encoding": sent, "x-goog-stored-content-encoding": stored}
    with pytest.raises(StoreMisbehaved, match=f"{stored}.*proxy"):
        check_response(request(0, 5), 200, headers)


def test_versions_of_another_name() -> None:
    asked = replace(request(0, 5, "7"), version_header="x-goog-generation")
    assert "If-Match" not in asked.headers()
    span = {"Content-Range": "bytes 0-4/5", "ETag": '"a"'}
    found = check_response(asked, 206, {**span, "x-goog-generation": "7"})
    assert found.info.etag == "7"
    with pytest.raises(ObjectChanged, match=r"version 7.*now has 8"):
        check_response(asked, 206, {**span, "x-goog-generation": "8"})
    with pytest.raises(ObjectChanged, match="without a name"):
        check_response(asked, 206, span)


def test_versions_are_compared_first() -> None:
    with pytest.raises(ObjectChanged):
        check_response(request(0, 5, '"a"'), 206, {"ETag": '"b"', "Content-Range": "nonsense"})
    with pytest.raises(ObjectChanged, match="undated-5"):
        check_response(request(0, 5, '"a"'), 206, {"Content-Range": "bytes 0-4/5"})


@pytest.mark.parametrize(
    ("header", "size"),
    [("bytes */12", 12), ("bytes */0", 0), ("bytes 0-1/12", None), ("bytes */*", None), ("", None)],
)
def test_size_past_the_end(header: str, size: int | None) -> None:
    assert size_from_416({"Content-Range": header}) == size
    assert size_from_416({}) is None
