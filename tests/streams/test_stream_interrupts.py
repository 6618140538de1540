"""Interrupted waits for a batch: the next call delivers that batch."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import fsspec
import pytest

import streamrec as sr
from streamrec.config import DatasetSettings
from streamrec.errors import BatchOutOfOrder
from streamrec.formats.shards.tfrecord import frame
from streamrec.pipeline.run import Run
from streamrec.streams.warm_start import TrainerClock
from tests.by_day import is_day, stops
from tests.feeder.support import serving
from tests.interrupts import Interrupted, interrupted_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from streamrec.pipeline.batch.batch import Batch
    from streamrec.streams.stream import Stream

RECORDS = [b"%d" % n for n in range(12)]
SHARD = b"".join(map(frame, RECORDS))


@pytest.fixture
def memory() -> Iterator[str]:
    with fsspec.open("memory://interrupts/part.tfrecord", "wb") as file:
        file.write(SHARD)
    yield "memory://interrupts/part.tfrecord"
    fsspec.filesystem("memory").rm("/interrupts", recursive=True)


@contextmanager
def by_thread(source: str, batch_size: int | None) -> Iterator[Callable[[], Stream]]:
    yield lambda: sr.open(source, batch_size=batch_size, rank=0, world_size=1, engine="thread")


@contextmanager
def by_process(source: str, batch_size: int | None) -> Iterator[Callable[[], Stream]]:
    yield lambda: sr.open(source, batch_size=batch_size, rank=0, world_size=1, engine="process")


@contextmanager
def by_default(source: str, batch_size: int | None) -> Iterator[Callable[[], Stream]]:
    yield lambda: sr.open(source, batch_size=batch_size, rank=0, world_size=1)


@contextmanager
def by_feeder(source: str, batch_size: int | None) -> Iterator[Callable[[], Stream]]:
    with serving(DatasetSettings(source=source, batch_size=batch_size)) as address:
        yield lambda: sr.connect(f"{address}/data", rank=0, world_size=1)


def records_of(item: Any) -> list[bytes]:
    return [item] if isinstance(item, bytes) else item.records.to_list()


def taken(one: Stream, step: int, first: int) -> tuple[list[bytes], bool]:
    """Take a few items, be interrupted at a step of the wait for another, and take all the rest."""
    with one:
        records = [record for item in sr.take(one, first) for record in records_of(item)]
        before = one.state_dict()
        second, interrupted = None, False
        try:
            with interrupted_at(step):
                for second in one:  # noqa: B007 - the loop ends with its first item
                    break
        except Interrupted:
            interrupted = True
        if second is not None:
            records += records_of(second)
        elif interrupted:
            assert one.state_dict() == before
        if interrupted or second is not None:  # else the run has ended
            records += [record for item in one for record in records_of(item)]
        assert one.statistics()["records"] == len(RECORDS)
    return records, interrupted


# An interrupt between the making of a coroutine and its hand-over to a loop: nothing has begun.
@pytest.mark.filterwarnings("ignore:.*never awaited")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("serve", "batch_size", "first"),
    [
        pytest.param(by_thread, 2, 1, id="thread"),
        pytest.param(by_thread, 2, 6, id="thread, at the end"),
        pytest.param(by_thread, None, 3, id="thread, single records"),
        pytest.param(by_feeder, 2, 1, id="feeder"),
    ],
)
def test_an_interrupt_at_every_step_of_next_loses_nothing(
    serve: Any, memory: str, batch_size: int | None, first: int
) -> None:
    with serve(memory, batch_size) as opened:
        for step in itertools.count(0, 4 if is_day() else 1):
            records, interrupted = taken(opened(), step, first)
            assert records == RECORDS, f"interrupted at step {step}"
            if not interrupted:
                break
    assert step > 3


@pytest.mark.filterwarnings("ignore:.*never awaited")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("serve", [by_default, by_process])
@pytest.mark.parametrize("step", stops([0, 20, 40, 60, 100, 200, 300]))
def test_an_interrupt_of_an_engine_process_loses_nothing(
    serve: Any, tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamrec.streams.warm_start.SHORT", 0)
    monkeypatch.setattr(TrainerClock, "is_busy", True)
    (tmp_path / "part.tfrecord").write_bytes(SHARD)
    with serve(str(tmp_path / "part.tfrecord"), 2) as opened:
        assert taken(opened(), step, 1)[0] == RECORDS


async def taken_although_cancelled(one: Stream) -> tuple[list[bytes], int]:
    """Cancel every wait after more and more turns of the loop, until it delivers."""
    records: list[bytes] = []
    cancelled = 0
    async with one:
        while len(records) < len(RECORDS):
            for turns in itertools.count():
                wait = asyncio.create_task(anext(one))
                for _ in range(turns):
                    await asyncio.sleep(0)
                wait.cancel()
                try:
                    records += records_of(await wait)
                except asyncio.CancelledError:
                    cancelled += 1
                    continue
                break
        with pytest.raises(StopAsyncIteration):
            await anext(one)
    return records, cancelled


@pytest.mark.parametrize("serve", [by_default, by_feeder])
@pytest.mark.parametrize("batch_size", [2, None])
def test_a_cancelled_wait_in_asyncio_loses_nothing(
    serve: Any, batch_size: int | None, memory: str
) -> None:
    with serve(memory, batch_size) as opened:
        records, cancelled = asyncio.run(taken_although_cancelled(opened()))
    assert records == RECORDS
    assert cancelled


@pytest.mark.parametrize("serve", [by_thread, by_feeder])
@pytest.mark.parametrize("lost", range(6))
def test_a_batch_that_got_lost_is_an_error_and_comes_again(
    serve: Any, lost: int, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, losses = Run.receive, iter([True])

    async def lossy(run: Run) -> Batch:
        step = run.position.step
        batch = await receive(run)
        return await receive(run) if step == lost and next(losses, False) else batch

    monkeypatch.setattr(Run, "receive", lossy)
    records: list[bytes] = []
    with serve(memory, 2) as opened, opened() as one:
        with pytest.raises(BatchOutOfOrder, match=f"stream is at step {lost}"):
            for batch in one:
                records += records_of(batch)
        assert len(records) == 2 * lost
        for batch in one:
            records += records_of(batch)
    assert records == RECORDS
