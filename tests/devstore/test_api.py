from __future__ import annotations

from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from streamrec.devstore.api import (
    ListingPage,
    ObjectBody,
    Reply,
    error_document,
    list_page,
    timestamp,
    xml_reply,
)
from streamrec.devstore.objects import MemoryObjects
from streamrec.devstore.refusals import NO_EFFECTS, FaultEffects, Refusal

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


NAMES = st.sets(st.text("ab/-\U0010ffff", min_size=1, max_size=6)).map(sorted)
SHORT = st.text("ab/", max_size=3)


def expected(keys: list[str], prefix: str, delimiter: str, after: str) -> list[str]:
    """Keys and common prefixes in one sorted list, by the definition."""
    found = set()
    for key in keys:
        if not key.startswith(prefix) or key <= after:
            continue
        rest = key[len(prefix) :]
        if delimiter and delimiter in rest:
            found.add(prefix + rest[: rest.index(delimiter) + len(delimiter)])
        else:
            found.add(key)
    return sorted(found - {after} if after else found)


def pages(keys: list[str], size: int, prefix: str, delimiter: str, after: str) -> list[ListingPage]:
    every = [list_page(keys, prefix=prefix, delimiter=delimiter, start_after=after, max_keys=size)]
    while every[-1].token is not None:
        every.append(
            list_page(
                keys, prefix=prefix, delimiter=delimiter, token=every[-1].token, max_keys=size
            )
        )
    return every


@given(NAMES, st.integers(1, 4), SHORT, st.sampled_from(["", "/", "a/"]), SHORT)
def test_pages_together_are_the_listing(
    keys: list[str], size: int, prefix: str, delimiter: str, after: str
) -> None:
    every = pages(keys, size, prefix, delimiter, after)
    names = [sorted((*page.keys, *page.prefixes)) for page in every]
    assert [name for page in names for name in page] == expected(keys, prefix, delimiter, after)
    assert all(len(page) == size for page in names[:-1])
    assert len(names) == 1 or names[-1]


@given(NAMES, SHORT)
def test_from_a_name_on(keys: list[str], start: str) -> None:
    assert list(list_page(keys, start=start).keys) == [key for key in keys if start <= key]


@given(NAMES)
def test_without_limits_all_keys_are_one_page(keys: list[str]) -> None:
    assert list_page(keys) == ListingPage(tuple(keys), (), None)


def test_a_page_holds_a_thousand_at_most() -> None:
    keys = [f"{n:05}" for n in range(1500)]
    page = list_page(keys)
    assert len(page.keys) == 1000
    assert list_page(keys, token=page.token).keys == tuple(keys[1000:])


def test_an_empty_page_has_no_successor() -> None:
    assert list_page(["a", "b"], max_keys=0) == ListingPage((), (), None)


def test_a_token_overrides_start_after() -> None:
    first = list_page(["a", "b", "c"], max_keys=1)
    assert list_page(["a", "b", "c"], start_after="b", token=first.token).keys == ("b", "c")


def test_keys_that_were_deleted_between_pages_do_no_harm() -> None:
    first = list_page(["a", "b", "c"], max_keys=2)
    assert list_page(["a", "c"], token=first.token).keys == ("c",)
