from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.devstore.errors import Refusal
from streamrec.devstore.s3_documents import (
    document,
    error_document,
    parse_delete,
    parse_parts,
    timestamp,
)

TEXT = st.text(
    st.characters(
        min_codepoint=32, exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"
    ),
    max_size=20,
)


@given(st.lists(TEXT, min_size=1))
def test_keys_survive_the_round_trip(keys: list[str]) -> None:
    body = document("Delete", [("Object", [("Key", key)]) for key in keys])
    assert parse_delete(body) == (keys, False)


def test_quiet() -> None:
    assert parse_delete(document("Delete", [("Quiet", "true")])) == ([], True)
    assert parse_delete(document("Delete", [("Quiet", "false")])) == ([], False)


def test_parts_with_and_without_namespace_and_quotes() -> None:
    part = (("PartNumber", 3), ("ETag", '"ab"'))
    body = document("CompleteMultipartUpload", [("Part", part)])
    assert parse_parts(body) == [(3, "ab")]
    bare = b"<C><Part><ETag>ab</ETag><PartNumber>3</PartNumber></Part></C>"
    assert parse_parts(bare) == [(3, "ab")]


@pytest.mark.parametrize(
    "body",
    [b"", b"<", b"<C><Part><PartNumber>x</PartNumber></Part></C>", b"<C><Part></Part></C>"],
)
def test_malformed_parts_are_refused(body: bytes) -> None:
    with pytest.raises(Refusal, match="MalformedXML"):
        parse_parts(body)


def test_an_error_says_code_message_resource_and_request() -> None:
    root = ET.fromstring(error_document(Refusal(404, "NoSuchKey"), "/b/<k>", "07"))
    facts = {node.tag: node.text for node in root}
    assert root.tag == "Error"
    assert facts == {
        "Code": "NoSuchKey",
        "Message": "The specified key does not exist.",
        "Resource": "/b/<k>",
        "RequestId": "07",
    }


def test_timestamps() -> None:
    assert timestamp(0) == "1970-01-01T00:00:00.000Z"
    assert timestamp(1_700_000_000.0625) == "2023-11-14T22:13:20.062Z"
