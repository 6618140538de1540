from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from google.protobuf import descriptor_pool
from hypothesis import given
from hypothesis import strategies as st

from streamrec.values import message_schema
from streamrec.values.message_schema import Field, Messages

TABLE = {
    "Point": (Field("double", "x", 1), Field("double", "y", 2)),
    "Everything": (
        Field("int64", "a", 1),
        Field("uint64", "b", 2),
        Field("int32", "c", 3),
        Field("uint32", "d", 4),
        Field("bool", "e", 5),
        Field("bytes", "f", 6),
        Field("string", "g", 7),
        Field("float", "h", 8),
        Field("Point", "point", 9),
        Field("repeated int64", "numbers", 10),
        Field("repeated Point", "points", 11),
        Field("map<string, Point>", "by_name", 12),
        Field("Point", "place", 13, oneof="where"),
        Field("string", "address", 14, oneof="where"),
        Field("int64", "one", 15, oneof="other"),
    ),
}


@pytest.fixture(scope="module")
def messages() -> dict[str, Any]:
    return Messages("streamrec.test", TABLE)


def test_full_names_carry_the_package(messages: dict[str, Any]) -> None:
    names = [messages[name].DESCRIPTOR.full_name for name in TABLE]
    assert names == ["streamrec.test.Point", "streamrec.test.Everything"]


def test_threads_get_the_same_classes_and_do_not_wait_for_one_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread that stops midway keeps nobody waiting: after a fork it never goes on."""
    begun, may_end, make = threading.Event(), threading.Event(), message_schema._classes

    def make_slowly(*arguments: Any) -> dict[str, Any]:
        begun.set()
        may_end.wait()
        return make(*arguments)

    messages = Messages("streamrec.test", TABLE)
    with ThreadPoolExecutor(2) as threads:
        monkeypatch.setattr(message_schema, "_classes", make_slowly)
        slow = threads.submit(messages.__getitem__, "Point")
        begun.wait()
        monkeypatch.setattr(message_schema, "_classes", make)
        try:
            quick = threads.submit(messages.__getitem__, "Point").result(timeout=60)
        finally:
            may_end.set()
        assert slow.result() is quick
    assert messages["Everything"]().point.__class__ is quick


def test_every_type_survives_the_wire(messages: dict[str, Any]) -> None:
    point = messages["Point"](x=1.5, y=-2.0)
    message = messages["Everything"](
        a=-(2**63), b=2**64 - 1, c=-(2**31), d=2**32 - 1, e=True, f=b"\xff", g="ü", h=0.5,
        point=point, numbers=[1, -1], points=[point, point], address="here",
    )  # fmt: skip
    message.by_name["p"].CopyFrom(point)
    assert messages["Everything"].FromString(message.SerializeToString()) == message


def test_repeated_numbers_are_packed(messages: dict[str, Any]) -> None:
    assert messages["Everything"](numbers=[1, 2, 3]).SerializeToString() == b"\x52\x03\x01\x02\x03"


def test_unpacked_numbers_are_read(messages: dict[str, Any]) -> None:
    assert list(messages["Everything"].FromString(b"\x50\x01\x50\x02").numbers) == [1, 2]


def test_a_oneof_holds_one_field(messages: dict[str, Any]) -> None:
    message = messages["Everything"](address="here", one=1)
    message.place.x = 1.0
    assert message.WhichOneof("where") == "place"
    assert message.WhichOneof("other") == "one"
    assert message.address == ""


@given(names=st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=5))
def test_maps_round_trip(names: dict[str, float]) -> None:
    kind = Messages("streamrec.test", TABLE)["Everything"]
    message = kind()
    for name, x in names.items():
        message.by_name[name].x = x
    back = kind.FromString(message.SerializeToString())
    assert {name: point.x for name, point in back.by_name.items()} == names


def test_two_pools_do_not_clash() -> None:
    first, second = Messages("same", TABLE), Messages("same", {"Point": (Field("bytes", "x", 1),)})
    assert first["Point"](x=1.0).x == 1.0
    assert second["Point"](x=b"1").x == b"1"


def test_nothing_reaches_the_default_pool() -> None:
    Messages("streamrec.private", TABLE)
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("streamrec.private.Point")


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(TypeError, match=r"streamrec\.test\.Pont"):
        Messages("streamrec.test", {"Line": (Field("repeated Pont", "x", 1),)})["Line"]


def test_a_message_that_the_table_lacks_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="Circle"):
        Messages("streamrec.test", TABLE)["Circle"]


def test_two_maps_in_one_message() -> None:
    table = {
        "Two": (Field("map<string, int64>", "first", 1), Field("map<int64,bytes>", "second_map", 2))
    }
    message = Messages("streamrec.test", table)["Two"](first={"a": 1}, second_map={2: b"b"})
    assert dict(message.first) == {"a": 1}
    assert dict(message.second_map) == {2: b"b"}


@pytest.mark.parametrize("implementation", ["python", "upb"])
def test_a_name_that_is_not_utf8_is_unreadable(implementation: str) -> None:
    """protobuf raises another error for it where it runs in Python."""
    code = """
from streamrec.kernel.messages import MESSAGES
from streamrec.values.message_schema import unreadable
try:
    MESSAGES["Example"].FromString(bytes([10, 8, 10, 6, 10, 2, 255, 254, 18, 0]))
except unreadable():
    print("unreadable")
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=os.environ | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "unreadable\n"
