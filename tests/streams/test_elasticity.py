"""Stopped anywhere, resumed anywhere, on any number of ranks: in process, and through a feeder."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import aclosing, asynccontextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamrec.feeder.client.client import AsyncFeed
from streamrec.feeder.server.server import Feeder
from streamrec.flow.channel import EndOfStream
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.state.resume_point import Beginning, ResumePoint, for_rank, read_resume_point
from tests.by_day import pairwise, stops
from tests.pipeline.small_datasets import identities, settings_of, write, write_index
from tests.support import examples

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from streamrec.pipeline.batch.batch import Batch

Shards = tuple[tuple[int, ...], ...]
Pairs = list[tuple[int, int]]

SHARDS = st.lists(st.lists(st.integers(0, 200), max_size=9).map(tuple), min_size=1, max_size=9)
ORDERS = st.fixed_dictionaries(
    {
        "shuffle": st.booleans(),
        "seed": st.integers(0, 9),
        "shuffle_window": st.integers(0, 3000),
    }
)
FEW = settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
WAYS = pytest.mark.parametrize("way", ["in process", "feeder"])
MANY = 100_000


class Reading:
    """A dataset that ranks read, directly or through a feeder on loopback."""

    def __init__(self, dataset: Dataset, address: str | None) -> None:
        self._dataset = dataset
        self._address = address

    @classmethod
    @asynccontextmanager
    async def of(cls, source: str, way: str, **values: Any) -> AsyncIterator[Reading]:
        dataset = await Dataset.open(settings_of(source, **values))
        try:
            async with Feeder({"data": dataset}) as feeder:
                address = await feeder.listen("tcp://127.0.0.1:0") if way == "feeder" else None
                yield cls(dataset, f"{address}/data" if address else None)
        finally:
            await dataset.aclose()

    async def rank(
        self, start: ResumePoint, most: int = MANY, *, rank: int = 0, world_size: int = 1,
        global_batch: int | None = None,
    ) -> list[Batch]:  # fmt: skip
        """Return the next batches of one rank's run."""
        size = global_batch // world_size if global_batch else None
        async with self.opened(rank, world_size, size, start) as source:
            return await _receive(source, most)

    @asynccontextmanager
    async def opened(
        self, rank: int, world_size: int, size: int | None, start: ResumePoint | None = None
    ) -> AsyncIterator[Any]:
        """Yield the stream of one rank's batches."""
        where: dict[str, Any] = {
            "rank": rank, "world_size": world_size, "position": start or Beginning()
        }  # fmt: skip
        if self._address is not None:
            async with aclosing(
                await AsyncFeed.open(self._address, batch_size=size, **where)
            ) as feed:
                yield feed
        else:
            size = size or self._dataset.settings.batch_size
            async with self._dataset.run(batch_size=size, **where) as run:
                yield run

    async def ranks(
        self, world_size: int, global_batch: int, starts: Sequence[ResumePoint], most: int
    ) -> tuple[list[Pairs], list[ResumePoint]]:
        """Return the next global batches of all ranks, and each rank's resume point."""
        ranks, behind = [], []
        for rank in range(world_size):
            start = for_rank(starts, rank, world_size)
            batches = await self.rank(
                start, most, rank=rank, world_size=world_size, global_batch=global_batch
            )
            ranks.append([identities([batch]) for batch in batches])
            behind.append(_saved(batches[-1].next_position) if batches else start)
        return [sorted(chain(*step)) for step in zip(*ranks, strict=True)], behind


async def _receive(source: Any, most: int) -> list[Batch]:
    batches: list[Batch] = []
    while len(batches) < most:
        try:
            batches.append(await source.receive())
        except EndOfStream:
            break
    return batches


def _saved(start: ResumePoint) -> ResumePoint:
    """Return the state as it comes back from a checkpoint."""
    return read_resume_point(json.loads(json.dumps(start.to_dict())))


def goes_on_for_ever(shards: Shards, lanes: int, *, shuffle: bool) -> bool:
    """Return whether all lanes go on having records: by shard the claim ends with a lane."""
    if shuffle:
        return any(shards)
    n = len(shards)
    return all(any(shards[(lane + lanes * k) % n] for k in range(n)) for lane in range(lanes))


def numbered(directory: Path, *what: object) -> Path:
    """Return a directory for one example."""
    return directory / str(abs(hash(str(what))))


@WAYS
@FEW
@given(
    shards=SHARDS.map(tuple),
    order=ORDERS,
    lanes=st.integers(1, 6),
    ends=st.fixed_dictionaries(
        {
            "batch_size": st.one_of(st.none(), st.integers(1, 12)),
            "epochs": st.integers(1, 2),
            "remainder": st.sampled_from(["keep", "drop", "pad"]),
        }
    ),
)
def test_stop_at_every_k(
    tmp_path: Path, way: str, shards: Shards, order: Any, lanes: int, ends: Any
) -> None:
    if ends["batch_size"] is None:
        ends["remainder"] = "keep"

    async def main() -> None:
        source = write(numbered(tmp_path, shards), shards)
        async with Reading.of(source, way, lanes=lanes, **order, **ends) as reading:
            whole = await reading.rank(Beginning())
            for k, batch in enumerate(whole, 1):
                tail = await reading.rank(_saved(batch.next_position))
                assert identities(whole[:k]) + identities(tail) == identities(whole)
                if ends["batch_size"]:
                    assert [b.next_position for b in tail] == [b.next_position for b in whole[k:]]
                    assert list(map(_mask, tail)) == list(map(_mask, whole[k:]))

    asyncio.run(main())


def _mask(batch: Batch) -> Any:
    return None if batch.mask is None else batch.mask.tolist()


@WAYS
@FEW
@given(
    shards=SHARDS.map(tuple),
    order=ORDERS,
    plan=st.lists(
        st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(0, 4)), min_size=1, max_size=4
    ),
    per_rank=st.integers(1, 3),
)
def test_resized_again_and_again(
    tmp_path: Path, way: str, shards: Shards, order: Any, plan: Any, per_rank: int
) -> None:
    """4 -> 2 -> 8 and any other sequence, at any step: the global batches go on as they would."""
    if not goes_on_for_ever(shards, 8, shuffle=order["shuffle"]):
        return

    async def main() -> None:
        source = write(numbered(tmp_path, shards), shards)
        total = sum(steps for _, steps in plan)
        async with Reading.of(source, way, lanes=8, epochs=None, **order) as reading:
            whole, _ = await reading.ranks(1, 8 * per_rank, [Beginning()], total)
            starts: list[ResumePoint] = [Beginning()]
            resized: list[Pairs] = []
            for world_size, steps in plan:
                some, starts = await reading.ranks(world_size, 8 * per_rank, starts, steps)
                resized += some
            assert resized == whole

    asyncio.run(main())


@pytest.mark.parametrize(
    ("sizes", "shuffle", "by"),
    pairwise([(48, 96, 3), (35, 105, 4), (12, 84, 17)], [False, True], ["shard", "record"]),
)
def test_the_same_records_on_every_number_of_ranks(
    tmp_path: Path, sizes: tuple[int, int, int], shuffle: bool, by: str
) -> None:
    """All world sizes that divide the lanes; uneven lanes; batches that divide nothing."""
    lanes, global_batch, records = sizes
    shards = tuple((20,) * (1 + (5 * shard) % records) for shard in range(lanes + 5))
    steps = sum(map(len, shards)) // global_batch + 2

    source = write(tmp_path, shards)
    values: Any = {"lanes": lanes, "shuffle": shuffle, "shuffle_window": 5000, "epochs": None}
    if by == "record":
        write_index(source, 100)
        values["index"] = True

    async def main() -> None:
        async with Reading.of(source, "in process", **values) as reading:
            whole, _ = await reading.ranks(1, global_batch, [Beginning()], steps)
            for world_size in stops(n for n in range(2, lanes + 1) if lanes % n == 0):
                there, _ = await reading.ranks(world_size, global_batch, [Beginning()], steps)
                assert there == whole, world_size

    asyncio.run(main())


@FEW
@given(
    shards=SHARDS.map(tuple),
    order=ORDERS,
    lanes=st.integers(1, 12),
    world_size=st.sampled_from([1, 2, 3, 4, 6, 12]),
    first=st.integers(0, 2),
)
def test_every_record_once_an_epoch(
    tmp_path: Path, shards: Shards, order: Any, lanes: int, world_size: int, first: int
) -> None:
    """Over all ranks together, in whichever epoch they begin."""
    lanes = -(-lanes // world_size) * world_size
    if not goes_on_for_ever(shards, lanes, shuffle=order["shuffle"]):
        return

    async def one(reading: Reading, rank: int) -> Pairs:
        """Return the records of an epoch; a batch of one has its record's epoch."""
        run = reading._dataset.run(
            rank=rank, world_size=world_size, batch_size=1, position=Beginning(first)
        )
        found: Pairs = []
        async with run:
            while run.position.epoch <= first:
                batch = await run.receive()
                found += identities([batch]) if batch.epoch == first else []
        return found

    async def main() -> None:
        source = write(numbered(tmp_path, shards), shards)
        async with Reading.of(source, "in process", lanes=lanes, epochs=None, **order) as reading:
            found = [await one(reading, rank) for rank in range(world_size)]
        everything = {(s, i): 1 for s, lengths in enumerate(shards) for i in range(len(lengths))}
        assert Counter(chain(*found)) == everything

    asyncio.run(main())


@WAYS
def test_no_rank_waits_for_ever(tmp_path: Path, way: str) -> None:
    """Eight ranks over shards of one to 40 records: as many batches each, then the end."""
    shards = tuple((30,) * (1 + (7 * shard) % 40) for shard in range(19))

    async def main() -> None:
        values: Any = {"lanes": 16, "epochs": 2, "steps_per_epoch": 9, "remainder": "drop"}
        async with Reading.of(write(tmp_path, shards), way, **values) as reading:
            ranks = [
                await reading.rank(Beginning(), rank=rank, world_size=8, global_batch=40)
                for rank in range(8)
            ]
        assert [len(batches) for batches in ranks] == [18] * 8
        assert {len(batch) for batch in chain(*ranks)} == {5}

    asyncio.run(main())
