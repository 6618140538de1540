from __future__ import annotations

from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from streamrec.devstore.errors import Refusal
from streamrec.devstore.s3_documents import error_document, timestamp, xml_reply

TEXT = st.text(
    st.characters(
        min_codepoint=32, exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"
    ),
    max_size=20,
)


@given(st.lists(TEXT, min_size=1))
def test_keys_survive_the_round_trip(keys: list[str]) -> None:
    body = xml_reply("Listing", [("Object", [("Key", key)]) for key in keys]).body
    assert isinstance(body, bytes)
    assert [node[0].text or "" for node in ET.fromstring(body)] == keys


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
