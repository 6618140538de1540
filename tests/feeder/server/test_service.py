from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streamrec.config.daemon import DaemonSettings
from streamrec.errors import FeederDraining
from streamrec.feeder.server.limits import SharedBudget
from streamrec.feeder.server.server import Feeder
from streamrec.feeder.server.service import Heap, Loan, release
from streamrec.flow.decoded_memory import Abandoned
from streamrec.pipeline.terms.memory_needs import NO_CEILING
from tests.feeder.support import eventually, on_both_loops
from tests.support import asynchronous

MIB = 1 << 20


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

    settings = DaemonSettings.Server()
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
    server = DaemonSettings.Server(max_bytes="60MiB", max_pixels=7)  # type: ignore[arg-type]
    feeder = Feeder({}, server)
    ceiling = Loan(feeder, 8 * MIB, 0).ceiling
    assert ceiling[:2] == (60 * MIB, 7)
    assert ceiling.cores is feeder.cores
