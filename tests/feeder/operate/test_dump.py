from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from streamrec.feeder.operate.dump import dump, dumping
from streamrec.feeder.operate.log_format import RateLimit
from streamrec.feeder.server.server import Feeder
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.support import eventually, on_both_loops, server_settings
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest


SECRET = "swordfish"


async def inner(event: asyncio.Event) -> None:
    await event.wait()


async def outer(event: asyncio.Event, secret: str) -> None:
    del secret
    await inner(event)


@asynccontextmanager
async def waiting(count: int, secret: str = "") -> AsyncIterator[None]:
    """Run tasks that stand at one place."""
    event = asyncio.Event()
    tasks = [asyncio.create_task(outer(event, secret), name=f"t{n}") for n in range(count)]
    await asyncio.sleep(0)
    yield
    event.set()
    await asyncio.gather(*tasks)


@asynchronous
async def test_tasks_are_shown_with_all_that_they_await() -> None:
    async with waiting(7):
        texts = dump(Feeder({}))
    (found,) = (text for text in texts if " outer: " in text)
    title, *places = found.splitlines()
    assert title == "7 tasks (t0, t1, t2, t3, t4, ...) at:"
    assert places[0].endswith("outer: await inner(event)")
    assert places[1].endswith("inner: await event.wait()")
    assert len(places) > 2  # in the event


@asynchronous
async def test_a_task_that_has_not_begun() -> None:
    task = asyncio.create_task(asyncio.sleep(0), name="young")
    assert any("(young)" in text for text in dump(Feeder({})))
    await task


@asynchronous
async def test_threads_and_numbers_are_shown() -> None:
    feeder = Feeder({"train": FakeDataset()})
    feeder.statistics.connections_total += 3
    begun, over = threading.Event(), threading.Event()

    def stand_still() -> None:
        begun.set()
        over.wait()

    thread = threading.Thread(target=stand_still, name="one that waits")
    thread.start()
    try:
        begun.wait()
        state, *others = dump(feeder)
    finally:
        over.set()
        thread.join()
    assert '"connections_opened": 3' in state
    assert '"obstacle": null' in state
    (found,) = (text for text in others if text.startswith("thread one that waits at:"))
    assert "stand_still: over.wait()" in found


@asynchronous
async def test_no_values_are_shown() -> None:
    feeder = Feeder({}, server_settings(token=SECRET))
    async with waiting(1, SECRET):
        assert SECRET not in "".join(dump(feeder))


@on_both_loops
async def test_a_signal_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with dumping(Feeder({})):
        os.kill(os.getpid(), signal.SIGUSR1)
        await eventually(lambda: "thread MainThread" in caplog.text)
    limit = RateLimit(most=0)
    assert all(limit.filter(record) for record in caplog.records)
