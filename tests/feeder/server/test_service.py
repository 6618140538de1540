from __future__ import annotations

import asyncio
import gc
import os
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.config.server_settings import ServerSettings
from streamrec.errors import ConfigError, FeederDraining
from streamrec.feeder.server.server import Feeder
from streamrec.feeder.server.service import Admission, Heap, Loan, SharedBudget, release
from streamrec.flow.pool import Abandoned
from streamrec.pipeline.terms.memory_needs import NO_CEILING
from tests.feeder.support import eventually, on_both_loops, server_settings
from tests.support import asynchronous

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


MIB = 1 << 20

sessions = st.tuples(st.integers(1, 200), st.integers(0, 200)).map(
    lambda pair: (pair[0] + pair[1], pair[0])
)
"""What a session asks for, and the least that it can read with."""


@given(st.integers(1, 1000), st.lists(st.tuples(sessions, st.booleans())))
def test_never_is_more_lent_than_there_is_and_all_comes_back(
    total: int, events: list[tuple[tuple[int, int], bool]]
) -> None:
    budget, held = SharedBudget(total), list[int]()
    for (asked, least), one_leaves in events:
        with suppress(ConfigError, FeederDraining):
            free = budget.free
            held.append(budget.lend(asked, least))
            assert least <= held[-1] <= min(asked, free)
        if one_leaves and held:
            budget.give_back(held.pop(0))
        assert budget.lent == sum(held) <= total
        assert budget.sessions == len(held)
    for granted in held:
        budget.give_back(granted)
    assert budget.free == total
    assert budget.sessions == 0


@given(st.integers(1, 1000), sessions)
def test_later_sessions_get_less_and_each_at_least_what_it_needs(
    total: int, session: tuple[int, int]
) -> None:
    asked, least = session
    budget, granted = SharedBudget(total), list[int]()
    with suppress(ConfigError, FeederDraining):
        while True:
            granted.append(budget.lend(asked, least))
    assert all(before >= after for before, after in pairwise(granted))
    assert budget.free < least
    if total >= 4 * asked:
        assert granted[0] == asked


def test_eight_sessions_that_ask_for_too_much_fit() -> None:
    budget = SharedBudget(128 * MIB)
    granted = [budget.lend(1024 * MIB, 8 * MIB) // MIB for _ in range(8)]
    assert granted == [32, 24, 18, 13, 10, 8, 8, 8]


def test_a_refusal_says_what_is_lent_and_what_to_raise() -> None:
    budget = SharedBudget(30 * MIB)
    budget.lend(20 * MIB, 20 * MIB)
    with pytest.raises(
        FeederDraining,
        match=r"has lent 20 MiB of its memory_budget of 30 MiB to 1 sessions, and this one needs "
        r"16 MiB; go on elsewhere",
    ):
        budget.lend(64 * MIB, 16 * MIB)
    assert repr(budget) == f"<SharedBudget, {20 * MIB} of {30 * MIB} bytes lent to 1 sessions>"


def test_what_can_never_fit_is_a_fault_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match="memory_budget is 30 MiB, and this dataset needs 40 MiB"):
        SharedBudget(30 * MIB).lend(64 * MIB, 40 * MIB)


def test_a_session_grows_and_is_still_one() -> None:
    budget = SharedBudget(100 * MIB)
    granted = budget.lend(20 * MIB, 20 * MIB)
    budget.grow(70 * MIB)
    assert (budget.free, budget.sessions) == (10 * MIB, 1)
    with pytest.raises(FeederDraining, match="this one needs 11 MiB"):
        budget.grow(11 * MIB)
    with pytest.raises(ConfigError, match="needs 101 MiB"):
        budget.grow(101 * MIB)
    budget.give_back(granted + 70 * MIB)
    assert (budget.lent, budget.sessions) == (0, 0)


def test_a_session_that_has_grown_keeps_room_for_those_that_are_here() -> None:
    budget = SharedBudget(100 * MIB)
    granted = budget.lend(20 * MIB, 10 * MIB)
    budget.grow(40 * MIB)
    assert budget.spent is None
    granted += budget.lend(20 * MIB, 10 * MIB)
    assert budget.free == 30 * MIB
    with pytest.raises(
        FeederDraining, match="to 2 sessions, keeps 25 MiB for their larger batches, and this one"
    ):
        budget.lend(20 * MIB, 10 * MIB)
    assert budget.spent is not None
    budget.grow(30 * MIB)
    for _ in range(2):
        budget.give_back((granted + 70 * MIB) // 2)
    assert budget.lend(100 * MIB, 100 * MIB) == 100 * MIB


def test_sessions_that_grow_and_come_back_do_not_send_each_other_to_and_fro() -> None:
    need, budget = 110 * MIB, SharedBudget(512 * MIB)
    held: dict[int, int] = {}
    sent_away = batches = 0
    for turn in range(50 * 8):
        client = turn % 8
        try:
            if client not in held:
                held[client] = budget.lend(64 * MIB, 8 * MIB)
            elif held[client] < need:
                more = need - held[client]
                budget.grow(more)
                held[client] += more
            else:
                batches += 1
        except FeederDraining:
            if client in held:
                sent_away += 1
                budget.give_back(held.pop(client))
    served = [client for client, granted in held.items() if granted == need]
    assert len(served) >= 3
    assert sent_away <= 8
    assert batches >= 3 * 40


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def leave_holes() -> bytearray:
    """Fill 60 MiB of the heap, free all but its end, and return that."""
    pieces = [bytearray(100_000) for _ in range(600)]
    for piece in pieces:
        piece[::4096] = b"x" * len(piece[::4096])
    return pieces[-1]


@pytest.mark.skipif(release is None, reason="the C library is not glibc")
@on_both_loops
async def test_freed_memory_goes_back_to_the_system_once_sessions_have_ended() -> None:
    heap = Heap(after=0.0)
    end = leave_holes()
    gc.collect()
    before = resident()
    for _ in range(3):
        heap.shrink_soon()
    assert resident() > before - 30 * MIB
    await eventually(lambda: not heap.is_due)
    assert resident() < before - 30 * MIB
    assert len(end) == 100_000


@asynchronous
async def test_a_run_borrows_from_a_thread_and_gives_all_back() -> None:
    budget = SharedBudget(100 * MIB)
    loan = Loan(Feeder({}, budget=budget), budget.lend(30 * MIB, 30 * MIB), 10 * MIB)
    assert loan.budget == 20 * MIB
    assert loan.ceiling.borrow is not None
    await asyncio.to_thread(loan.ceiling.borrow, 40 * MIB)
    assert budget.lent == 70 * MIB
    with pytest.raises(FeederDraining):
        await asyncio.to_thread(loan.ceiling.borrow, 31 * MIB)
    loan.end()
    loan.end()
    assert (budget.lent, budget.sessions) == (0, 0)
    with pytest.raises(Abandoned):
        await asyncio.to_thread(loan.ceiling.borrow, 1)


@asynchronous
async def test_what_is_lent_after_the_end_is_given_back_too() -> None:
    given: list[int] = []
    lent = asyncio.Event()

    async def grow(*_: int) -> None:
        await lent.wait()

    settings = ServerSettings()
    feeder: Any = SimpleNamespace(grow=grow, give_back=given.append, settings=settings, cores=None)
    loan = Loan(feeder, 30, 0)
    growing = asyncio.create_task(loan._grow(12))
    await asyncio.sleep(0)
    loan.end()
    assert given == []
    lent.set()
    await growing
    assert given == [42]


@asynchronous
async def test_a_feeder_without_a_budget_sets_no_limits() -> None:
    loan = Loan(Feeder({}), None, 0)
    assert (loan.budget, loan.ceiling) == (None, NO_CEILING)
    loan.end()


@asynchronous
async def test_the_ceilings_are_the_server_s() -> None:
    server = ServerSettings(max_bytes="60MiB", max_pixels=7)  # type: ignore[arg-type]
    feeder = Feeder({}, server)
    ceiling = Loan(feeder, 8 * MIB, 0).ceiling
    assert ceiling[:2] == (60 * MIB, 7)
    assert ceiling.cores is feeder.cores
