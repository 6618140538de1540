from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Self

import pytest

from streamrec.feeder.client.client import BlockingFeed
from streamrec.feeder.client.healing import AsyncHealingFeed, BlockingHealingFeed
from streamrec.flow.channel import EndOfStream
from streamrec.flow.pool import Pool
from streamrec.pipeline import dataset
from streamrec.pipeline.run import Run
from streamrec.plan.state.resume_point import Beginning
from streamrec.streams.ranks import Rank
from streamrec.streams.session import LoopSession, ThreadFeed, ThreadSession
from streamrec.streams.warm_start import WarmStartSession
from tests.cancellation import cancel_in_every_turn
from tests.feeder.support import until
from tests.pipeline.small_datasets import settings_of, write
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streamrec.streams.loops import AsyncSession, PlainSession


@pytest.mark.parametrize("taken", [0, 1])
@asynchronous
async def test_closing_is_not_cut_short(
    taken: int, tmp_path: Path, started_threads: Callable[[], set[str]]
) -> None:
    settings = settings_of(write(tmp_path, ((1000,) * 50,) * 4), batch_size=4, epochs=None)
    session = await LoopSession.open(settings, Rank(0, 1), Beginning())
    for _ in range(taken):
        await session.receive()
    await cancel_in_every_turn(session.aclose())
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not [name for name in started_threads() if name.startswith("streamrec-decode")]
    assert repr(session._dataset._stores) == "<Stores none open>"


@pytest.mark.parametrize("failing", [1, 2])
@asynchronous
async def test_a_run_that_cannot_begin_is_an_error_and_not_a_wait(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = 0

    class Unready(Run):
        async def __aenter__(self) -> Self:
            nonlocal begun
            begun += 1
            if begun == failing:
                raise RuntimeError("no run")
            return await super().__aenter__()

    monkeypatch.setattr(dataset, "Run", Unready)
    settings = settings_of(write(tmp_path, ((10,) * 4,) * 2), batch_size=4)
    session = await LoopSession.open(settings, Rank(0, 1), Beginning())
    for _ in range(failing - 1):
        with pytest.raises(EndOfStream):
            while True:
                await session.receive()
        session.subscribe()
    for take in (session.receive, session.receive, session.halt):
        with pytest.raises(RuntimeError, match="no run"):
            await asyncio.wait_for(take(), 60)
    await session.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_thread_gives_all_memory_back_when_it_is_left(tmp_path: Path) -> None:
    """Without the collector of cycles, which comes late where few objects hold many bytes."""
    source = write(tmp_path, ((20_000,) * 40,) * 4)
    settings = settings_of(source, batch_size=4, epochs=None)
    gc.collect()
    gc.disable()
    try:
        before = memory()
        for _ in range(5):
            session = ThreadSession(settings, Rank(0, 1), Beginning())
            for _ in range(3):
                session.receive()
            session.close()
        until(lambda: memory() <= before)
    finally:
        gc.enable()


def memory() -> int:
    """Bytes of ranges and of columns, in use and idle, of all streams in this process."""
    pools = (found for found in gc.get_objects() if issubclass(type(found), Pool))
    return sum(pool.in_use + pool.idle for pool in pools)


PLAIN: list[type[PlainSession]] = [
    BlockingFeed,
    BlockingHealingFeed,
    ThreadFeed,
    ThreadSession,
    WarmStartSession,
]
"""All that read for a stream are of one of two kinds, as a type checker sees it."""
ASYNC: list[type[AsyncSession]] = [AsyncHealingFeed, LoopSession]


def test_a_session_says_its_kind() -> None:
    assert not any(kind.is_async for kind in PLAIN)
    assert all(kind.is_async for kind in ASYNC)
