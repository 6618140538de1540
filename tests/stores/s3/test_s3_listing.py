from __future__ import annotations

from urllib.parse import quote_plus
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import StoreMisbehaved
from streamrec.stores.base.protocol import ObjectInfo
from streamrec.stores.s3.s3_listing import parse_page

NAMESPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
HEAD = "s3://bucket/"
OBJECTS = st.lists(
    st.builds(
        ObjectInfo,
        st.text(st.characters(codec="utf-8", exclude_characters="\r", exclude_categories=["C"])),
        st.integers(0, 1 << 50),
        st.sampled_from(['"7ff8141cdd4bc356a77e67fa9c970f6f"', '"a-12"']),
    )
)


def document(objects: list[ObjectInfo], more: str = "", *, space: str = NAMESPACE) -> bytes:
    entries = [
        f"<Contents><Key>{escape(info.url)}</Key><LastModified>2026-05-17</LastModified>"
        f"<ETag>{escape(info.etag or '', {chr(34): '&quot;'})}</ETag><Size>{info.size}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
        for info in objects
    ]
    declared = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return (
        f"{declared}<ListBucketResult{space}>{more}{''.join(entries)}</ListBucketResult>".encode()
    )


def under_head(objects: list[ObjectInfo]) -> list[ObjectInfo]:
    return [ObjectInfo(HEAD + info.url, info.size, info.etag) for info in objects]


@given(OBJECTS, st.booleans(), st.sampled_from([NAMESPACE, ""]))
def test_a_page_reads_as_it_was_written(
    objects: list[ObjectInfo], encoded: bool, space: str
) -> None:
    written = objects
    if encoded:
        written = [ObjectInfo(quote_plus(one.url), one.size, one.etag) for one in objects]
    more = "<EncodingType>url</EncodingType>" if encoded else ""
    page = parse_page(HEAD, HEAD, document(written, more, space=space))
    assert (page.objects, page.token) == (under_head(objects), None)


def test_another_page_follows() -> None:
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;b</NextContinuationToken>"
    assert parse_page(HEAD, HEAD, document([], more)).token == "a&b"
    last = more.replace("true", "false")
    assert parse_page(HEAD, HEAD, document([], last)).token is None


def test_common_prefixes_are_no_objects() -> None:
    more = "<CommonPrefixes><Prefix>a/</Prefix></CommonPrefixes>"
    found = parse_page(HEAD, HEAD, document([ObjectInfo("b", 1, '"c"')], more))
    assert found.objects == under_head([ObjectInfo("b", 1, '"c"')])


BOMB = b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>' + document([])


@pytest.mark.parametrize(
    "page",
    [
        *(b"", b"<html>", b"\xff\xfe<", b"<ListBucketResult>", b"<Error><Code>X</Code></Error>"),
        BOMB,
        BOMB.decode().encode("utf-16"),
        document([], "<IsTruncated>true</IsTruncated>"),
        document([], "<Contents><Key>a</Key></Contents>"),
        document([], "<Contents><Size>1</Size></Contents>"),
        document([], "<Contents><Key>a</Key><Size>many</Size></Contents>"),
        document([], "<Contents><Key>a</Key><Size>-1</Size></Contents>"),
        document([], f"<Contents><Key>a</Key><Size>{1 << 63}</Size></Contents>"),
        document([], "<Prefix>&a;</Prefix>"),
    ],
    ids=range(14),
)
def test_what_is_no_listing(page: bytes) -> None:
    with pytest.raises(StoreMisbehaved, match="endpoint_url") as caught:
        parse_page("s3://bucket/train-", HEAD, page)
    assert caught.value.url == "s3://bucket/train-"


@given(st.binary())
def test_any_document(page: bytes) -> None:
    with pytest.raises(StoreMisbehaved):
        parse_page(HEAD, HEAD, page)
