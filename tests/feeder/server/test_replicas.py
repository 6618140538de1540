from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.config import DatasetSettings
from streamrec.errors import CorruptRecord, FeederDraining
from streamrec.feeder.client.client import AsyncFeed
from streamrec.feeder.server import replicas
from streamrec.feeder.server.replicas import Readings, Replica, ReplicaReader
from streamrec.feeder.server.server import Feeder
from streamrec.feeder.server.service import SharedBudget
from streamrec.flow.channel import EndOfStream
from streamrec.pipeline.dataset import Dataset
from streamrec.values.columns import size_of
from tests.feeder import fake_dataset
from tests.feeder.client.test_client import all_of, check, dataset_at, listening
from tests.feeder.fake_dataset import ROWS, FakeDataset
from tests.feeder.shards import write_shards
from tests.feeder.support import eventually, on_both_loops, served, until
from tests.feeder.test_same_host import check_all

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from streamrec.feeder.client.session import Options
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.served import ServedRun
    from streamrec.plan.state.position import Position


ROOM = 4
"""The batches that a reading keeps."""
BATCH = sum(size_of(column) for column in fake_dataset.batch(0).values())
HERE = "tcp://127.0.0.1:0"
IN_STEP: Options = {"replicas": True, "credit_bytes": 1, "shared_bytes": 1 << 20}
"""A batch at a time, so that nobody is at the end before others have begun."""


class Fixture:
    """Readings of a dataset in memory that keep ``ROOM`` batches."""

    def __init__(self, room: int = ROOM, **options: Any) -> None:
        self.dataset = FakeDataset(**options)
        self.room = room
        self.reader = ReplicaReader("train", self.dataset, 0, 1, ROWS)
        self.readings = Readings(self._start)

    @property
    def starts(self) -> int:
        return len(self.dataset.budgets)

    @contextlib.asynccontextmanager
    async def _start(
        self, reader: ReplicaReader, position: Position
    ) -> AsyncIterator[tuple[ServedRun, int]]:
        async with reader.dataset.run(
            rank=reader.rank,
            world_size=reader.world_size,
            batch_size=reader.batch_size,
            position=position,
        ) as run:
            yield run, self.room * BATCH + 99  # a name may be longer

    def replica(self, step: int | None = None) -> Replica:
        return self.readings.replica(
            self.reader, None if step is None else fake_dataset.position(step)
        )

    def check_all_closed(self) -> None:
        assert self.dataset.open_runs == 0
        assert repr(self.readings) == "<Readings, 0 of them>"


async def take(replica: Replica, steps: range) -> None:
    for step in steps:
        assert replica.position.step == step
        check(await replica.receive(), step)


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=60))
def test_each_gets_its_own_batches_in_any_order(room: int, turns: list[tuple[int, int]]) -> None:
    async def main() -> None:
        fixture, at = Fixture(room), dict[int, int]()
        async with AsyncExitStack() as stack:
            entered: dict[int, Replica] = {}
            for who, start in turns:
                if who not in entered:
                    entered[who] = await stack.enter_async_context(fixture.replica(start))
                    at[who] = start
                if at[who] < 10:
                    check(await entered[who].receive(), at[who])
                    at[who] += 1
                else:
                    with pytest.raises(EndOfStream):
                        await entered[who].receive()
        fixture.check_all_closed()

    asyncio.run(main())


@on_both_loops
async def test_those_in_step_read_once() -> None:
    fixture = Fixture(steps=100)
    async with fixture.replica() as first, fixture.replica() as second, fixture.replica(0) as third:
        for step in range(0, 100, ROOM):
            for replica in (first, second, third):
                await take(replica, range(step, step + ROOM))
        assert fixture.dataset.taken == 100
        assert fixture.starts == 1
        assert first.statistics()["batches"] == 100
        waits = first.measures.waits
        assert not waits.enter("decode"), "the client has a batch, and waits for nothing"
    fixture.check_all_closed()


@on_both_loops
async def test_all_wait_for_the_same_batch() -> None:
    fixture = Fixture()
    async with AsyncExitStack() as stack:
        all_ = [await stack.enter_async_context(fixture.replica()) for _ in range(5)]
        for batch in await asyncio.gather(*(replica.receive() for replica in all_)):
            check(batch, 0)
        assert fixture.dataset.taken == 1


@pytest.mark.parametrize("step", range(8))
@on_both_loops
async def test_who_comes_later_joins_where_the_batch_is_still_there(step: int) -> None:
    fixture = Fixture()
    async with fixture.replica() as first:
        await take(first, range(6))
        async with fixture.replica(step) as late:
            await take(late, range(step, 10))
        is_there = 6 - ROOM <= step <= 6
        assert fixture.starts == (1 if is_there else 2)
        assert fixture.dataset.taken == (10 if is_there else 6 + 10 - step)
        await take(first, range(6, 10))
    fixture.check_all_closed()


@on_both_loops
async def test_the_slowest_holds_nobody_back_and_misses_nothing() -> None:
    fixture = Fixture(steps=20)
    async with fixture.replica() as slow, fixture.replica() as slower, fixture.replica() as quick:
        for replica in (slow, slower):
            await take(replica, range(2))
        await take(quick, range(20))
        assert fixture.starts == 1
        await take(slow, range(2, 10))
        assert fixture.starts == 2
        await take(slower, range(2, 3))
        assert fixture.starts == 3, "the others are too far ahead"
        for _ in range(2):
            with pytest.raises(EndOfStream):
                await quick.receive()
        assert quick.position.step == 20
    fixture.check_all_closed()


@on_both_loops
async def test_those_who_fall_behind_together_go_on_together() -> None:
    fixture = Fixture(steps=20)
    async with fixture.replica() as one, fixture.replica() as other, fixture.replica() as quick:
        await take(quick, range(20))
        for step in range(20):
            await take(one, range(step, step + 1))
            await take(other, range(step, step + 1))
        assert fixture.starts == 2


@on_both_loops
async def test_another_part_or_dataset_is_another_reading() -> None:
    fixture = Fixture()
    readers = [
        ReplicaReader("train", dataset, rank, 2, ROWS)
        for rank in (0, 1)
        for dataset in (fixture.dataset, FakeDataset())
    ]
    async with AsyncExitStack() as stack:
        for reader in readers:
            replica = await stack.enter_async_context(fixture.readings.replica(reader, None))
            await replica.receive()
        assert repr(fixture.readings) == "<Readings, 4 of them>"


@on_both_loops
async def test_all_hear_of_a_failure_and_may_try_again() -> None:
    fixture = Fixture(fail_at=2, error=CorruptRecord("the CRC differs"))
    async with fixture.replica() as first, fixture.replica() as second:
        for replica in (first, second):
            await take(replica, range(2))
            with pytest.raises(CorruptRecord):
                await replica.receive()
        assert fixture.starts == 1
        fixture.dataset.fail_at = -1
        async with fixture.replica(2) as again:
            await take(again, range(2, 10))
        assert fixture.starts == 2
    fixture.check_all_closed()


@on_both_loops
async def test_a_failure_is_every_replica_s_even_if_reading_on_would_go_well() -> None:
    """Else one of them would get batches that the others have gone on without."""
    fixture = Fixture(fail_at=2, error=CorruptRecord("the CRC differs"))
    async with fixture.replica() as first, fixture.replica() as second:
        await take(first, range(2))
        await take(second, range(2))
        with pytest.raises(CorruptRecord):
            await first.receive()
        fixture.dataset.fail_at = -1
        with pytest.raises(CorruptRecord):
            await second.receive()
        assert fixture.dataset.taken == 2


@on_both_loops
async def test_at_the_end_each_is_where_the_next_run_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    following = fake_dataset.position(10, skip=3)
    receive = fake_dataset.FakeRun.receive

    async def at_its_end(run: fake_dataset.FakeRun) -> Batch:
        try:
            return await receive(run)
        except EndOfStream:
            run.position = following
            raise

    monkeypatch.setattr(fake_dataset.FakeRun, "receive", at_its_end)
    fixture = Fixture()
    async with fixture.replica(8) as first, fixture.replica(8) as second:
        for replica in (first, second):
            await take(replica, range(8, 10))
            assert replica.position == fake_dataset.position(10)
            with pytest.raises(EndOfStream):
                await replica.receive()
            assert replica.position == following


@on_both_loops
async def test_who_reads_for_all_may_leave_at_any_time() -> None:
    fixture = Fixture(hang_at=1)
    async with fixture.replica() as first, fixture.replica() as second:
        await take(first, range(1))
        await take(second, range(1))
        reading = asyncio.create_task(first.receive())
        waiting = asyncio.create_task(second.receive())
        await asyncio.sleep(0)
        fixture.dataset.hang_at = -1
        reading.cancel()
        check(await waiting, 1)
    fixture.check_all_closed()


@on_both_loops
async def test_nothing_is_started_before_it_is_asked_for() -> None:
    fixture = Fixture()
    async with fixture.replica() as replica:
        assert fixture.starts == 0
        assert repr(replica) == "<Replica of train, step 0>"
    fixture.check_all_closed()


class TestServed:
    @pytest.mark.parametrize("kind", ["tcp", "unix"])
    @on_both_loops
    async def test_clients_share_a_reading(self, kind: str, tmp_path: Path) -> None:
        dataset = FakeDataset(steps=30)
        async with Feeder({"train": dataset}) as feeder:
            address = dataset_at(str(await feeder.listen(listening(kind, tmp_path))))
            async with AsyncExitStack() as stack:
                feeds = [
                    await stack.enter_async_context(
                        aclosing(await AsyncFeed.open(address, **IN_STEP))
                    )
                    for _ in range(3)
                ]
                for batches in await asyncio.gather(*map(all_of, feeds)):
                    check_all(batches, size=100)
                assert dataset.taken == 30
                assert dataset.allocates == [None], "no client can write to what others get"
                for feed in feeds:
                    feed.subscribe()
                    check(await feed.receive(), 30)
                assert dataset.open_runs == 1
                async with aclosing(await AsyncFeed.open(address)) as alone:
                    check(await alone.receive(), 0)
                    assert dataset.open_runs == 2
            await eventually(lambda: not dataset.open_runs)

    @on_both_loops
    async def test_they_take_memory_once(self) -> None:
        budget = SharedBudget(1 << 30)
        dataset = FakeDataset(hang_at=5)
        async with Feeder({"train": dataset}, budget=budget) as feeder:
            address = f"{await feeder.listen(HERE)}/train"
            async with AsyncExitStack() as stack:
                for _ in range(3):
                    feed = await AsyncFeed.open(address, replicas=True)
                    await stack.enter_async_context(aclosing(feed))
                    await feed.receive()
                (given,) = dataset.budgets
                assert given is not None
                assert (budget.sessions, budget.lent) == (1, given + replicas.WINDOW)
            await eventually(lambda: not budget.lent)

    @on_both_loops
    async def test_where_none_is_left_they_go_elsewhere(self) -> None:
        budget = SharedBudget(1 << 30)
        budget.lend(1 << 30, 1 << 30)
        async with Feeder({"train": FakeDataset()}, budget=budget) as feeder:
            address = f"{await feeder.listen(HERE)}/train"
            async with aclosing(await AsyncFeed.open(address, replicas=True)) as feed:
                with pytest.raises(FeederDraining, match="memory_budget"):
                    await feed.receive()

    @on_both_loops
    async def test_real_shards_are_read_once(self, tmp_path: Path) -> None:
        source = write_shards(tmp_path, shards=4, records=50, size=1000)
        settings = DatasetSettings(source=source, batch_size=8, shuffle=True, seed=1)
        dataset = await Dataset.open(settings)
        async with Feeder({"train": dataset}) as feeder:
            address = f"{await feeder.listen(HERE)}/train"
            found = []
            for times, shared in ((3, False), (4, True)):
                options: Options = {**IN_STEP, "replicas": shared}
                feeds = [await AsyncFeed.open(address, **options) for _ in range(3)]
                every = await asyncio.gather(*map(all_of, feeds))
                found += [[batch.records.to_list() for batch in batches] for batches in every]
                for feed in feeds:
                    await feed.aclose()
                await eventually(lambda: not feeder.statistics.subscriptions)
                read = feeder.snapshot()["datasets"]["train"]["fetch"]["bytes_read"]
                assert read == times * (dataset.stored_bytes or 0)
            assert len(found[0]) == 25
            assert all(batches == found[0] for batches in found)
        await dataset.aclose()

    @pytest.mark.parametrize("engine", [None, "process"])
    def test_streams_say_that_they_are_some(self, engine: Any) -> None:
        dataset = FakeDataset(steps=1000, size=10_000)
        with served({"train": dataset}) as feeder:
            address = f"{feeder.listen(HERE)}/train"
            streams = [sr.connect(address, rank=0, world_size=1, replicas=True, engine=engine)]
            streams += [sr.connect(address, rank=0, world_size=1)]
            for stream in streams:
                with stream:
                    assert (next(iter(stream))["number"] == range(ROWS)).all()
                    readings = repr(feeder.feeder.readings)
                    assert readings == f"<Readings, {int(stream is streams[0])} of them>"
                until(lambda: not dataset.open_runs)
