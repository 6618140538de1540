"""Work of lanes in threads, and the notice of its end."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from streamrec.flow.stages import WaitClock
from streamrec.formats.examples.needs import UNLIMITED
from streamrec.formats.examples.renaming import AS_STORED
from streamrec.pipeline.fetch.range_queue import Shards
from streamrec.pipeline.lane.lane_builder import LaneBuilder
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def builder(threads: ThreadPoolExecutor, notify: Callable[[int], object]) -> LaneBuilder:
    """Return a builder of the running loop, with no more than starts work."""
    plan: Any = SimpleNamespace(
        settings=SimpleNamespace(features=None),
        functions=SimpleNamespace(filter=None),
        limits=UNLIMITED,
        renames=AS_STORED,
    )
    fetcher: Any = SimpleNamespace(notify=notify)
    decoder: Any = None
    return LaneBuilder(plan, Shards([]), fetcher, None, threads, decoder, WaitClock())


@asynchronous
async def test_the_lane_is_notified_in_the_loop_when_its_work_is_done() -> None:
    notified, here = asyncio.Queue[tuple[int, int]](), threading.get_ident()
    with ThreadPoolExecutor(1) as threads:
        made = builder(threads, lambda j: notified.put_nowait((j, threading.get_ident())))
        future = made._submit(3, max, 4, 5)
        assert await notified.get() == (3, here)
    assert future.result() == 5


def test_work_that_is_done_after_the_loop_ended_notifies_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def made(threads: ThreadPoolExecutor) -> LaneBuilder:
        return builder(threads, notified.append)

    notified: list[int] = []
    with ThreadPoolExecutor(1) as threads:
        future = asyncio.run(made(threads))._submit(3, max, 4, 5)
    assert future.result() == 5
    assert not notified
    assert not caplog.records, "a callback that fails is logged by concurrent.futures"
