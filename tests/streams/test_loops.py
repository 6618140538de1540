"""Streams whose event loops come and go, and streams that leave the loop to others."""

from __future__ import annotations

import asyncio
import gc
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import streamrec as sr
from streamrec.errors import ConfigError
from streamrec.flow import timings
from tests.feeder.support import eventually, serving
from tests.pipeline.small_datasets import settings_of, write

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from streamrec.config.keywords import Engine

BATCHES = 6


@contextmanager
def opened(of: str, engine: Engine | None, folder: Path) -> Iterator[sr.Stream]:
    """A stream of six batches a run, of shards or of a feeder."""
    source = write(folder / "raw", ((40,) * 7, (30,) * 5))
    if of == "shards":
        yield sr.open(source, batch_size=2, engine=engine)
    else:
        with serving(settings_of(source, batch_size=2)) as address:
            yield sr.connect(f"{address}/data", engine=engine)


@pytest.fixture(params=["shards", "a feeder"])
def stream(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sr.Stream]:
    with opened(request.param, "thread", tmp_path) as stream:
        yield stream


async def take(stream: sr.Stream, most: int) -> list[int]:
    return [batch.next_position.step async for batch in sr.take(stream, most)]


def steps(stream: Iterable[sr.Batch]) -> list[int]:
    return [batch.next_position.step for batch in stream]


def test_a_loop_for_each_epoch(stream: sr.Stream) -> None:
    first = asyncio.run(take(stream, 99))
    assert first == [1, 2, 3, 4, 5, 6]
    assert asyncio.run(take(stream, 99)) == [7, 8, 9, 10, 11, 12]
    assert steps(stream) == [13, 14, 15, 16, 17, 18]
    assert asyncio.run(take(stream, 99)) == [19, 20, 21, 22, 23, 24]
    stream.close()


def test_a_loop_for_each_few_batches(stream: sr.Stream) -> None:
    """A break leaves the session open in a loop that ends: the next loop goes on behind it."""
    assert [asyncio.run(take(stream, 2)) for _ in range(3)] == [[1, 2], [3, 4], [5, 6]]
    assert asyncio.run(take(stream, 1)) == []  # the end of the run
    assert asyncio.run(take(stream, 1)) == [7]
    assert steps(stream) == [8, 9, 10, 11, 12]
    gc.collect()


def test_it_is_closed_after_its_loop(stream: sr.Stream) -> None:
    asyncio.run(take(stream, 2))
    stream.close()
    assert asyncio.run(take(stream, 2)) == [3, 4]
    asyncio.run(stream.aclose())
    assert asyncio.run(take(stream, 1)) == [5]


def test_a_loop_that_stands_still(stream: sr.Stream) -> None:
    """It was left by `run_until_complete`, and is not closed."""
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(take(stream, 2)) == [1, 2]
    assert loop.run_until_complete(take(stream, 2)) == [3, 4]
    assert steps(stream) == [5, 6]
    stream.close()
    assert loop.run_until_complete(take(stream, 2)) == [7, 8]
    assert asyncio.run(take(stream, 1)) == [9]
    loop.close()
    gc.collect()


def test_a_loop_that_was_closed_around_it(
    stream: sr.Stream, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing that its tasks hold is destroyed: that would warn, or harm a thread at work."""
    for expected in ([1, 2], [3, 4]):
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(take(stream, 2)) == expected
        loop.close()
    with caplog.at_level(logging.WARNING, "streamrec"):
        assert steps(stream) == [5, 6]
    assert "an event loop was closed before its tasks were cancelled" in caplog.text
    gc.collect()


def test_a_finished_loop_of_one_kind_is_followed_by_one_of_the_other(stream: sr.Stream) -> None:
    async def both() -> list[list[int]]:
        return [await take(stream, 99), steps(stream), await take(stream, 99), steps(stream)]

    runs = asyncio.run(both())
    assert [run[0] for run in runs] == [1, 7, 13, 19]
    assert {len(run) for run in runs} == {BATCHES}
    stream.close()


@pytest.mark.parametrize("engine", ["process", "thread", None])
@pytest.mark.parametrize("of", ["shards", "a feeder"])
def test_a_loop_of_the_other_kind_goes_on_behind_a_break(
    of: str, engine: Engine | None, tmp_path: Path
) -> None:
    async def both(stream: sr.Stream) -> list[list[int]]:
        return [
            steps(sr.take(stream, 2)),
            await take(stream, 1),
            steps(sr.take(stream, 1)),
            await take(stream, 99),
        ]

    with opened(of, engine, tmp_path) as stream:
        assert asyncio.run(both(stream)) == [[1, 2], [3], [4], [5, 6]]
        stream.close()


def test_single_records_go_on_in_a_loop_of_the_other_kind(tmp_path: Path) -> None:
    """Those that came along with the last one taken are read again."""
    stream = sr.open(write(tmp_path / "raw", ((40,) * 7, (30,) * 5)))
    whole = list(stream)
    stream.rewind()

    async def both() -> list[bytes]:
        with stream:
            first = [*sr.take(stream, 3)]
            second = [record async for record in sr.take(stream, 5)]
            return first + second + [*stream]

    assert asyncio.run(both()) == whole


@pytest.mark.parametrize("of", ["shards", "a feeder"])
def test_the_block_may_be_of_the_other_kind(of: str, tmp_path: Path) -> None:
    async def both(stream: sr.Stream) -> list[list[int]]:
        with stream:
            first = await take(stream, 2)
        async with stream:
            return [first, steps(sr.take(stream, 2)), await take(stream, 1)]

    with opened(of, "thread", tmp_path) as stream:
        assert asyncio.run(both(stream)) == [[1, 2], [3, 4], [5]]


def test_one_item_of_the_other_kind_is_refused_with_a_way_on(stream: sr.Stream) -> None:
    async def both() -> None:
        assert next(stream).next_position.step == 1
        with pytest.raises(ConfigError, match=r"open for plain code; .* begin an `async for`"):
            await anext(stream)
        assert await take(stream, 1) == [2]
        with pytest.raises(ConfigError, match=r"open in an event loop; .* begin a plain `for`"):
            next(stream)
        with pytest.raises(ConfigError, match="close it with `await aclose"):
            stream.close()
        assert await take(stream, 1) == [3]
        await stream.aclose()

    asyncio.run(both())


def test_two_loops_at_once_are_refused(stream: sr.Stream) -> None:
    async def read() -> None:
        assert await take(stream, 1) == [1]
        with pytest.raises(ConfigError, match="another event loop, which still runs"):
            await asyncio.to_thread(asyncio.run, take(stream, 1))
        assert await take(stream, 1) == [2]
        await stream.aclose()

    asyncio.run(read())


class TestReadyBatches:
    """A loop over batches that are there already lets other tasks of the event loop run."""

    @pytest.fixture(autouse=True)
    def _short_turns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timings, "LONGEST_TURN", 0.0)

    @pytest.fixture
    def source(self, tmp_path: Path) -> str:
        return write(tmp_path / "raw", ((40,) * 7, (30,) * 5))

    @pytest.mark.parametrize(("batch_size", "items"), [(2, 6), (None, 12)])
    def test_another_task_runs_between_them(
        self, batch_size: int | None, items: int, source: str
    ) -> None:
        async def read() -> None:
            async with sr.open(source, batch_size=batch_size) as stream:
                await begin(stream, batch_size)
                ran: list[int] = []
                other = asyncio.create_task(note(ran))
                rest = [len(ran) async for _ in stream]
                other.cancel()
                assert len(rest) == items - 1
                assert rest == sorted(set(rest))

        asyncio.run(read())

    @pytest.mark.parametrize("batch_size", [2, None])
    def test_a_cancelled_task_ends_at_the_next_one(
        self, batch_size: int | None, source: str
    ) -> None:
        taken = []

        async def read(stream: sr.Stream) -> None:
            async for item in stream:
                taken.append(item)
                if len(taken) == 2:
                    cancel(asyncio.current_task())

        async def run() -> None:
            async with sr.open(source, batch_size=batch_size) as stream:
                await begin(stream, batch_size)
                reading = asyncio.create_task(read(stream))
                await asyncio.wait([reading])
                assert reading.cancelled()
                assert len(taken) == 2
                assert stream.state_dict()["step"] == 3  # nothing was taken for nobody

        asyncio.run(run())


async def begin(stream: sr.Stream, batch_size: int | None) -> None:
    """Take the first item, and wait until the others are there; single records come together."""
    await anext(stream)
    if batch_size:
        await eventually(lambda: stream.statistics()["batches_ready"] == BATCHES - 1)


def cancel(task: asyncio.Task[None] | None) -> None:
    assert task is not None
    task.cancel()


async def note(ran: list[int]) -> None:
    while True:
        ran.append(0)
        await asyncio.sleep(0)
