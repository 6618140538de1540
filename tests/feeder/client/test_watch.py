from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from streamrec.feeder.client.watch import Watch
from tests.pipeline.simulated_store import simulated

if TYPE_CHECKING:
    from streamrec.feeder.client.connection import AsyncConnection

SECONDS = 100.0


class Watched:
    """A connection as far as it is watched, and what became of it."""

    def __init__(self) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        self.unsent = 0
        self.pings = 0
        self.overdue_at: float | None = None

    def ping(self) -> None:
        self.pings += 1
        self.unsent += 34 if self.unsent else 0

    def hear(self) -> None:
        self.heard_at = asyncio.get_running_loop().time()

    def watch(self) -> Watch:
        return Watch(cast("AsyncConnection", self), SECONDS, self._overdue)

    def _overdue(self) -> None:
        self.overdue_at = asyncio.get_running_loop().time()


@simulated
async def test_who_is_silent_is_asked_once_and_then_overdue() -> None:
    client = Watched()
    with client.watch():
        await asyncio.sleep(SECONDS / 2 - 1)
        assert client.pings == 0
        await asyncio.sleep(2)
        assert client.pings == 1
        await asyncio.sleep(SECONDS / 2 - 2)
        assert client.overdue_at is None
        await asyncio.sleep(2)
    assert client.overdue_at == SECONDS
    assert client.pings == 1


@simulated
async def test_who_answers_is_asked_again_and_never_overdue() -> None:
    client = Watched()
    with client.watch():
        for asked in range(1, 20):
            await asyncio.sleep(SECONDS / 2 + 1)
            assert client.pings == asked
            client.hear()
    assert client.pings == 19
    assert client.overdue_at is None


@simulated
async def test_who_has_not_read_the_question_is_not_asked_again() -> None:
    """The peer sends now and then, and reads nothing: PINGs must not pile up."""
    client = Watched()
    with client.watch():
        for _ in range(20):
            await asyncio.sleep(SECONDS / 2 - 1)
            client.hear()
    assert client.pings == 0


@simulated
async def test_who_takes_what_is_sent_is_not_overdue() -> None:
    """A large batch over a slow link: nothing comes back before all of it has arrived."""
    client = Watched()
    client.unsent = 1 << 30
    with client.watch():
        for _ in range(20):
            await asyncio.sleep(SECONDS - 1)
            client.unsent -= 1 << 20
        assert client.overdue_at is None
        await asyncio.sleep(2 * SECONDS)
    assert client.overdue_at is not None


@simulated
async def test_more_that_waits_is_no_sign_of_life() -> None:
    client = Watched()
    client.unsent = 1000
    with client.watch():
        await asyncio.sleep(SECONDS / 2 - 1)
        client.unsent = 5000
        await asyncio.sleep(SECONDS)
    assert client.overdue_at == SECONDS


@simulated
async def test_nothing_is_looked_at_afterwards() -> None:
    client = Watched()
    with client.watch():
        await asyncio.sleep(SECONDS * 3 / 4)
    await asyncio.sleep(SECONDS)
    assert client.overdue_at is None
    assert client.pings == 1
