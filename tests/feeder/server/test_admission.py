from __future__ import annotations

from streamrec.feeder.server.admission import Admission
from tests.feeder.support import server_settings

HERE = None
"""The address of whoever comes from this machine."""


def admission(**settings: int) -> Admission[str]:
    return Admission(server_settings(**settings))


def test_a_handshake_is_no_client() -> None:
    counted = admission(max_connections=1)
    for name in "abc":
        assert counted.arrive(name, HERE) is None
    assert (counted.handshakes, counted.clients) == (3, 0)
    assert counted.full is None
    assert counted.admit("b") is None
    assert (counted.handshakes, counted.clients) == (2, 1)
    assert sorted(counted.guests) == ["a", "b", "c"]


def test_no_more_clients_than_the_limit() -> None:
    counted = admission(max_connections=1)
    for name in "ab":
        counted.arrive(name, HERE)
    assert counted.admit("a") is None
    assert "serves 1 clients already" in str(counted.admit("b"))
    assert "max_connections" in str(counted.full)
    counted.leave("a")
    assert counted.full is None
    assert counted.admit("b") is None


def test_the_oldest_handshake_makes_room() -> None:
    counted = admission(max_handshakes=2)
    came = [counted.arrive(name, HERE) for name in "abcd"]
    assert came == [None, None, "a", "b"]
    assert counted.handshakes == 2
    counted.leave("a")
    counted.admit("c")
    assert counted.arrive("e", HERE) is None


def test_an_address_with_many_handshakes_makes_room_first() -> None:
    counted = admission(max_handshakes=3)
    assert counted.arrive("honest", "10.0.0.7") is None
    came = [counted.arrive(name, "10.0.0.66") for name in "abcd"]
    assert came == [None, None, "a", "b"]
    assert counted.admit("honest") is None


def test_one_address_has_a_part_of_the_places() -> None:
    counted = admission(max_connections=4, max_connections_per_address=2)
    for name in "abcd":
        counted.arrive(name, "10.0.0.7")
    assert [counted.admit(name) for name in "ab"] == [None, None]
    refusal = str(counted.admit("c"))
    assert "2 clients at 10.0.0.7 already" in refusal
    assert "max_connections_per_address" in refusal
    assert counted.full is None
    counted.arrive("e", "10.0.0.8")
    assert counted.admit("e") is None
    counted.leave("a")
    assert counted.admit("c") is None


def test_this_machine_has_all_of_them() -> None:
    counted = admission(max_connections=4, max_connections_per_address=1)
    for name in "abcd":
        counted.arrive(name, HERE)
        assert counted.admit(name) is None


def test_nothing_is_kept_of_those_who_left() -> None:
    counted = admission()
    for name in "abc":
        counted.arrive(name, f"10.0.0.{ord(name)}")
    counted.admit("a")
    counted.admit("b")
    for name in "abc":
        counted.leave(name)
    assert counted.guests == []
    assert (counted.handshakes, counted.clients) == (0, 0)
