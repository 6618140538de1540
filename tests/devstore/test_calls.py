from __future__ import annotations

from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from streamrec.devstore.calls import ObjectBody, Reply, error_document, timestamp, xml_reply
from streamrec.devstore.faults import NO_EFFECTS, FaultEffects
from streamrec.devstore.objects import MemoryObjects
from streamrec.devstore.ranges import Refusal

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


def test_the_size_of_a_body() -> None:
    objects = MemoryObjects()
    objects["b/k"] = b"0123456789"
    assert Reply(body=b"abc").size == 3
    assert Reply(body=ObjectBody(objects.open("b", "k"), 2, 7)).size == 5


def test_faults_change_the_head() -> None:
    reply = Reply(206, {"Content-Range": "bytes 0-1/2", "A": "b"})
    assert reply.with_faults(NO_EFFECTS) == reply
    assert reply.with_faults(FaultEffects(partial_status=200)).status == 200
    wrong = reply.with_faults(FaultEffects(content_range="bytes 5-6/7", headers={"A": "c"}))
    assert wrong.headers == {"Content-Range": "bytes 5-6/7", "A": "c"}
    assert reply.with_faults(FaultEffects(content_range="")).headers == {"A": "b"}


def test_only_partial_answers_change_their_status() -> None:
    assert Reply(200).with_faults(FaultEffects(partial_status=203)).status == 200
