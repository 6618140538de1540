from __future__ import annotations

import threading
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import (
    ConfigError,
    CorruptRecord,
    FeederDraining,
    FeederLost,
    FeederRefused,
    OtherDataset,
    OtherOrder,
    RemoteProtocolError,
    Stalled,
    StoreUnavailable,
    StreamrecError,
)
from streamrec.feeder.access.address import Address
from streamrec.feeder.client.failover import LOOK_EVERY, Failover, Moves, Pause
from streamrec.flow.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Sequence

LOST = FeederLost("it is gone; check it")


def addresses(count: int) -> list[Address]:
    return [Address(f"10.0.0.{number}", 7070, dataset="train") for number in range(count)]


def failover(rank: int = 0, retry_for: float = 600, seed: int = 0) -> Failover:
    return Failover(rank, retry_for, Random(seed))


def begun(count: int, **options: Any) -> Failover:
    """Return a policy that has tried the first of its addresses."""
    policy = failover(**options)
    assert policy.next() == Pause(0)
    policy.begin_round(addresses(count))
    policy.next()
    return policy


@given(st.integers(0, 1000), st.integers(1, 9))
def test_rank_r_begins_at_address_r_mod_n_and_goes_round(rank: int, count: int) -> None:
    policy = failover(rank)
    assert policy.next() == Pause(0)
    policy.begin_round(addresses(count))
    tried = []
    for _ in range(count):
        tried.append(policy.next())
        assert policy.note_failure(LOST, 0) is None
    places = addresses(count)
    assert tried == [places[(rank + turn) % count] for turn in range(count)]
    assert isinstance(policy.next(), Pause)


@given(st.integers(0, 1000), st.integers(1, 5), st.integers(1, 5))
def test_near_feeders_come_before_far_ones_in_each_round(rank: int, near: int, far: int) -> None:
    policy = failover(rank)
    places = [replace(one, is_far=i >= near) for i, one in enumerate(addresses(near + far))]
    for number in range(3):
        assert isinstance(policy.next(), Pause)
        policy.begin_round(places)
        tried = [policy.next() for _ in places]
        for _ in places:
            assert policy.note_failure(LOST, 0) is None
        assert {*tried[:near]} == {*places[:near]}
        assert {*tried[near:]} == {*places[near:]}
        if not number:  # ranks share the near feeders, and the far ones
            assert tried[0] == places[rank % near]
            assert tried[near] == places[near + rank % far]


def test_a_name_that_stands_for_near_feeders_too_is_not_tried_twice() -> None:
    near = [Address("near", 1, dataset="x", ip=ip) for ip in ("10.0.0.1", "10.0.0.2")]
    every = [
        Address("all", 1, dataset="x", ip=ip, is_far=True)
        for ip in ("10.0.0.1", "10.0.0.2", "10.0.1.1")
    ]
    policy = failover(0)
    policy.begin_round([*near, *every])
    assert policy.addresses == [*near, every[2]]


def test_a_client_moves_only_to_its_own_feeder() -> None:
    two, three = addresses(2), addresses(3)
    policy = begun(2, rank=1)
    assert policy.address == two[1]
    policy.note_delivery()
    assert not policy.move(two)
    assert not policy.move(three)
    assert policy.move(three[:1])
    assert policy.next() == three[0]


@given(st.integers(0, 99), st.integers(1, 20))
def test_pauses_are_those_of_full_jitter(seed: int, rounds: int) -> None:
    policy, expected = begun(1, seed=seed, retry_for=1e9), Backoff(Random(seed))
    for _ in range(rounds):
        assert policy.note_failure(LOST, 0) is None
        assert policy.next() == Pause(expected.next())
        policy.begin_round(addresses(1))
        policy.next()


@given(
    st.just(0.0) | st.floats(0.001, 1000),  # less is lost beside the time of the clock
    st.lists(st.tuples(st.integers(1, 5), st.floats(0.001, 50)), min_size=1),
    st.integers(0, 9),
)
def test_time_is_up_after_retry_for_and_not_before(
    retry_for: float, rounds: list[tuple[int, float]], rank: int
) -> None:
    """Attempts of any length at any number of addresses, in a simulated time."""
    policy, now, began, tried = failover(rank, retry_for), 0.0, None, 0
    for count, seconds in rounds:
        pause = policy.next()
        assert isinstance(pause, Pause)
        now += pause.seconds
        assert began is None or now <= began + retry_for + 1e-6
        policy.begin_round(addresses(count))
        for left in reversed(range(count)):
            assert isinstance(policy.next(), Address)
            now += seconds
            tried += 1
            began = now if began is None else began
            error = policy.note_failure(LOST, now)
            is_over = began + retry_for - now <= 0 and (tried > rounds[0][0] or not left)
            assert (error is not None) == is_over
            if error is not None:
                return


def test_a_batch_ends_all_failures() -> None:
    policy = begun(3, retry_for=10)
    for now in (0, 9):
        assert policy.note_failure(LOST, now) is None
        policy.next()
    assert policy.failures == 2
    policy.note_delivery()
    policy.note_delivery()
    assert policy.failures == 0
    assert policy.note_failure(LOST, 1000) is None
    pause = policy.next()
    assert isinstance(pause, Pause)
    assert 0 < pause.seconds <= 0.1
    policy.begin_round(addresses(3))
    assert policy.next() == addresses(3)[0]
    policy.next()
    policy.next()
    assert policy.note_failure(LOST, 1009) is None
    assert policy.note_failure(LOST, 1010) is not None


def test_without_retries_each_address_is_tried_once_and_a_loss_is_final() -> None:
    policy = begun(2, retry_for=0)
    assert policy.note_failure(LOST, 5) is None
    policy.next()
    policy.note_delivery()
    assert policy.note_failure(LOST, 6) is LOST


@pytest.mark.parametrize(
    "error",
    [
        FeederLost("x"),
        FeederDraining("x"),
        StoreUnavailable("x"),
        Stalled("x", stage="feeder"),
    ],
)
def test_what_heals(error: StreamrecError) -> None:
    assert begun(2).note_failure(error, 0) is None


@pytest.mark.parametrize(
    "error",
    [
        FeederRefused("x"),
        ConfigError("x"),
        CorruptRecord("x"),
        RemoteProtocolError("no feeder"),
        StreamrecError("of a later version"),
    ],
)
def test_what_is_final(error: StreamrecError) -> None:
    assert begun(2).note_failure(error, 0) is error


@pytest.mark.parametrize("error", [OtherDataset("x"), OtherOrder("x")])
class TestFeedersOfAnotherStream:
    def test_the_others_are_tried_before_the_error(self, error: StreamrecError) -> None:
        policy = begun(3)
        for _ in range(2):
            assert policy.note_failure(error, 0) is None
            policy.next()
        final = policy.note_failure(error, 0)
        assert type(final) is type(error)
        assert str(final) == "tcp://10.0.0.2:7070/train: x"

    def test_of_a_stream_that_has_not_begun_one_round_is_enough(
        self, error: StreamrecError
    ) -> None:
        policy = begun(2)
        assert policy.note_failure(error, 0) is None
        policy.next()
        final = policy.note_failure(LOST, 0)
        assert type(final) is type(error)
        assert str(final) == "tcp://10.0.0.0:7070/train: x"

    def test_a_feeder_that_is_gone_for_a_while_may_be_the_right_one(
        self, error: StreamrecError
    ) -> None:
        policy = begun(2, retry_for=10)
        policy.note_welcome()
        policy.note_delivery()
        assert policy.note_failure(LOST, 0) is None
        for now in (1, 5):
            assert isinstance(policy.next(), Pause)
            policy.begin_round(addresses(2))
            for each in (error, LOST):
                policy.next()
                assert policy.note_failure(each, now) is None
        policy.next()
        policy.begin_round(addresses(2))
        policy.next()
        final = policy.note_failure(LOST, 11)
        assert type(final) is type(error), "it says more than that the other one is gone"

    def test_a_batch_ends_it(self, error: StreamrecError) -> None:
        policy = begun(2, retry_for=0)
        policy.note_failure(error, 0)
        policy.next()
        policy.note_delivery()
        assert policy.note_failure(LOST, 6) is LOST


def test_a_breach_of_the_protocol_heals_once_it_is_known_to_be_a_feeder() -> None:
    assert begun(1).note_failure(RemoteProtocolError("the CRC is wrong"), 0, welcomed=True) is None


def test_a_stall_is_final_where_there_is_no_other_feeder() -> None:
    error = Stalled("x", stage="feeder")
    assert begun(1).note_failure(error, 0, welcomed=True) is error


def test_the_error_says_what_was_tried() -> None:
    policy = begun(2, retry_for=5)
    assert policy.note_failure(FeederLost("refused; check it"), 100) is None
    policy.next()
    assert policy.note_failure(FeederDraining("it is full"), 102) is None
    policy.next()
    policy.begin_round(addresses(2))
    policy.next()
    error = policy.note_failure(FeederLost("silent; look"), 106)
    assert isinstance(error, FeederLost)
    assert str(error) == (
        "no feeder sent a batch for 6 s (retry_for is 5 s); tried tcp://10.0.0.0:7070/train (2 x, "
        "at last: silent), tcp://10.0.0.1:7070/train (1 x, at last: it is full); see that a feeder "
        "runs at one of them, and go on from the position"
    )


def test_the_error_names_a_few_addresses_of_many() -> None:
    policy = begun(20, retry_for=0)
    error = None
    while error is None:
        error = policy.note_failure(LOST, 1)
        policy.next()
    assert "10.0.0.7:" in str(error)
    assert "10.0.0.8:" not in str(error)
    assert ", 12 more addresses; see" in str(error)


def test_a_policy_shows_where_it_is() -> None:
    policy = begun(1)
    policy.note_failure(LOST, 0)
    assert repr(policy) == "<Failover at tcp://10.0.0.0:7070/train, 1 failures>"


@pytest.mark.parametrize(
    "error", [RemoteProtocolError("a page of a proxy"), FeederRefused("no TLS", code="tls")]
)
def test_what_is_no_handshake_heals_where_a_feeder_has_been(error: StreamrecError) -> None:
    assert begun(1).note_failure(error, 0) is error
    policy = begun(2)
    policy.note_welcome()
    policy.note_delivery()
    assert policy.note_failure(LOST, 0) is None
    policy.next()
    policy.begin_round([replace(place, ip="10.1.1.1") for place in addresses(2)])
    policy.next()
    assert policy.address == replace(addresses(2)[1], ip="10.1.1.1")
    assert policy.note_failure(error, 1) is error, "no feeder was ever there"
    policy = begun(1)
    policy.note_welcome()
    policy.note_delivery()
    assert policy.note_failure(LOST, 0) is None
    policy.next()
    policy.begin_round([replace(place, ip="10.1.1.1") for place in addresses(1)])
    policy.next()
    assert policy.note_failure(error, 1) is None, "the machine is another one, the name the same"


@pytest.mark.parametrize("code", ["token", "certificate", "dataset", "version"])
def test_a_refusal_is_final_where_a_feeder_has_been(code: str) -> None:
    policy, error = begun(1), FeederRefused("x", code=code)
    policy.note_welcome()
    assert policy.note_failure(error, 0) is error


@pytest.mark.parametrize(("outage", "least", "most"), [(0, 0, 0.1), (60, 5, 6), (400, 13, 15)])
def test_clients_spread_over_a_part_of_the_outage(outage: float, least: float, most: float) -> None:
    waits = []
    for seed in range(100):
        policy = begun(1, seed=seed)
        policy.note_failure(LOST, 0)
        policy.note_failure(LOST, outage)
        pause = policy.next()
        assert isinstance(pause, Pause)
        waits.append(pause.seconds)
    assert least <= max(waits) <= most
    assert len({round(wait, 6) for wait in waits}) > 90


def test_an_outage_has_a_line_every_half_minute() -> None:
    policy = begun(1, retry_for=float("inf"))
    assert policy.news(50) is None
    said = []
    for now in range(100, 200, 5):
        policy.note_failure(FeederLost("refused; check it"), now)
        said += [news for news in [policy.news(now)] if news]
    assert said == [
        f"no feeder has sent a batch for {seconds} s; tried tcp://10.0.0.0:7070/train "
        f"({seconds // 5 + 1} x, at last: refused)"
        for seconds in (30, 60, 90)
    ]
    policy.note_delivery()
    assert policy.news(500) is None


def machines(*numbers: int) -> list[Address]:
    return [Address("feeders", 7070, dataset="train", ip=f"10.0.0.{n}") for n in numbers]


class Names:
    """Names that stand for other machines from look to look."""

    def __init__(self, *answers: Sequence[Address]) -> None:
        self._answers = [*answers]
        self.looked = threading.Event()

    def look(self) -> Sequence[Address]:
        self.looked.set()
        return self._answers.pop(0)


def after_looks(names: Names, count: int, known: Sequence[Address]) -> list[list[Address] | None]:
    """Return what is told after each of so many looks."""
    watched = Moves(names.look, Random(1))
    watched.know(known)
    told: list[list[Address] | None] = []
    now = 0.0
    assert watched.changed(now) is None  # it has just been looked up, for the connection
    for _ in range(count):
        now += 2 * LOOK_EVERY
        assert watched.changed(now) is None  # it does not wait for the look
        assert names.looked.wait(100)
        names.looked.clear()
        for thread in threading.enumerate():
            if thread.name == "streamrec-look":
                thread.join(100)
        found = watched.changed(now)
        told.append(None if found is None else list(found))
    return told


def test_a_fleet_that_stays_as_it_is_moves_nobody() -> None:
    same = machines(1, 2)
    assert after_looks(Names(same, same, same), 3, same) == [None, None, None]


def test_a_fleet_that_has_grown_or_shrunk_counts_at_the_second_look() -> None:
    for new in (machines(1, 2, 3), machines(1)):
        assert after_looks(Names(new, new), 2, machines(1, 2)) == [None, new]


def test_a_feeder_in_place_of_another_moves_nobody_but_counts_from_then_on() -> None:
    new, more = machines(1, 3), machines(1, 3, 4)
    names = Names(new, new, more, more)
    assert after_looks(names, 4, machines(1, 2)) == [None, None, None, more]


def test_names_that_stand_for_some_of_many_feeders_move_nobody() -> None:
    answers = [machines(1, 2, 3), machines(2, 3, 4), machines(2, 3, 4), machines(1, 2, 4)] * 3
    assert after_looks(Names(*answers), 12, machines(1, 2, 3)) == [None] * 12


def test_a_feeder_that_is_not_ready_for_a_moment_moves_nobody() -> None:
    all_three, two = machines(1, 2, 3), machines(1, 2)
    names = Names(two, all_three, two, all_three)
    assert after_looks(names, 4, all_three) == [None] * 4


def test_names_that_cannot_be_looked_up_say_nothing() -> None:
    unknown = [Address("feeders", 7070, dataset="train")]
    assert after_looks(Names(unknown, unknown), 2, machines(1)) == [None, None]


def test_between_looks_nothing_is_asked() -> None:
    names = Names()
    watched = Moves(names.look, Random(1))
    watched.know(machines(1))
    for now in (0.0, 1.0, 0.4 * LOOK_EVERY):
        assert watched.changed(now) is None
    assert not names.looked.is_set()
