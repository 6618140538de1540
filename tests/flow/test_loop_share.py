from __future__ import annotations

import asyncio

import pytest

from streamrec.flow import loop_share
from streamrec.flow.loop_share import LONGEST_TURN, LoopShare
from tests.support import asynchronous


@asynchronous
async def test_others_run_once_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, now, ran = asyncio.get_running_loop(), 100.0, 0

    def count() -> None:
        nonlocal ran
        ran += 1
        loop.call_soon(count)

    monkeypatch.setattr(loop_share, "perf_counter", lambda: now)
    loop.call_soon(count)
    share = LoopShare()
    await share.give_way()
    assert ran == 1
    await share.give_way()
    assert ran == 1
    now += LONGEST_TURN
    await share.give_way()
    assert ran == 2


@asynchronous
async def test_a_task_is_cancelled_where_it_gives_way() -> None:
    share = LoopShare()
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await share.give_way()
