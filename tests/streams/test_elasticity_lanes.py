"""On any number of ranks: what lanes do to records, ranks that step together, single records."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from itertools import chain, count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamrec as sr
from streamrec.errors import MalformedPosition
from streamrec.flow.channel import EndOfStream
from streamrec.plan.state.resume_point import Beginning, for_rank
from tests.by_day import stops
from tests.pipeline.lane.test_packing_stage import FEATURES, ORDERS, SHARDS
from tests.pipeline.lane.test_packing_stage import contents as columns
from tests.pipeline.lane.test_packing_stage import write as write_tokens
from tests.pipeline.small_datasets import identities, write, write_index
from tests.streams.test_elasticity import FEW, WAYS, Reading, _saved, numbered
from tests.support import examples

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.pipeline.batch.batch import Batch
    from streamrec.plan.state.resume_point import ResumePoint
    from streamrec.streams.stream import Stream

# -- filter, map and pack --------------------------------------------------------------------------


@FEW
@given(SHARDS, ORDERS)
def test_stop_at_every_k_through_a_feeder(
    tmp_path: Path, shards: tuple[tuple[int, ...], ...], order: dict[str, Any]
) -> None:
    """A feeder's lanes filter, map and pack as those in process do, from every step on."""

    async def main() -> None:
        source = write_tokens(numbered(tmp_path, shards, order), shards)
        values = {"features": FEATURES, **order}
        async with Reading.of(source, "in process", **values) as reading:
            direct = await reading.rank(Beginning())
        async with Reading.of(source, "feeder", **values) as reading:
            whole = await reading.rank(Beginning())
            assert columns(whole) == columns(direct)
            assert [b.next_position for b in whole] == [b.next_position for b in direct]
            for k, batch in enumerate(whole, start=1):
                tail = await reading.rank(_saved(batch.next_position))
                assert columns(whole[:k] + tail) == columns(whole)
                assert [b.next_position for b in tail] == [b.next_position for b in whole[k:]]

    asyncio.run(main())


@WAYS
@pytest.mark.parametrize("plan", [[(4, 2), (2, 1), (1, 3)], [(1, 2), (4, 2), (2, 2)]])
@pytest.mark.parametrize("shuffle", [False, True])
def test_packs_of_what_is_kept_on_any_number_of_ranks(
    tmp_path: Path, way: str, plan: list[tuple[int, int]], shuffle: bool
) -> None:
    shards = tuple(tuple((3 * i + shard) % 9 + 1 for i in range(20)) for shard in range(7))
    values = {
        "features": FEATURES,
        "filter": "tests.pipeline.user_functions:has_even_number",
        "map": "tests.pipeline.user_functions:add_doubles",
        "pack": {"length": 12, "bins": 2},
        "lanes": 4,
        "shuffle": shuffle,
        "shuffle_window": 2000,
        "epochs": None,
    }

    async def main() -> None:
        async with Reading.of(write_tokens(tmp_path, shards), way, **values) as reading:
            whole = await reading.rank(Beginning(), 6, global_batch=8)
            steps: list[Any] = []
            starts: list[ResumePoint] = [Beginning()]
            for world_size, most in plan:
                ranks = [
                    await reading.rank(
                        for_rank(starts, rank, world_size),
                        most,
                        rank=rank,
                        world_size=world_size,
                        global_batch=8,
                    )
                    for rank in range(world_size)
                ]
                steps += [in_order(step) for step in zip(*ranks, strict=True)]
                starts = [_saved(batches[-1].next_position) for batches in ranks]
            assert steps == [in_order([batch]) for batch in whole[: len(steps)]]

    asyncio.run(main())


def in_order(step: Any) -> list[list[int]]:
    """Return the packs of a global batch."""
    return sorted(row for batch in step for row in batch["doubles"].tolist())


# -- ranks that wait for each other ----------------------------------------------------------------


class Collective:
    """A meeting of a training job's ranks after each step: all must have ended, or none."""

    def __init__(self, world_size: int) -> None:
        self._barrier = asyncio.Barrier(world_size)
        self._ended: Counter[int] = Counter()

    async def take_all(self, source: Any) -> list[Batch]:
        batches: list[Batch] = []
        for step in count():
            try:
                batches.append(await source.receive())
            except EndOfStream:
                self._ended[step] += 1
            await self._barrier.wait()
            if self._ended[step]:
                break
        assert self._ended[step] == self._barrier.parties
        return batches


UNEVEN = st.lists(st.integers(0, 40), min_size=1, max_size=9).filter(lambda n: sum(n) >= 16)


@WAYS
@pytest.mark.parametrize("ends", ["drop", "pad"])
@settings(FEW, max_examples=examples(12))
@given(
    shards=UNEVEN,
    shuffle=st.booleans(),
    lanes=st.sampled_from([8, 16]),
    share=st.integers(1, 5),
    epochs=st.integers(1, 3),
)
def test_no_rank_of_eight_waits_for_ever(
    tmp_path: Path, way: str, ends: str, shards: list[int], shuffle: bool, lanes: int, share: int,
    epochs: int,
) -> None:  # fmt: skip
    """They step together to their common end, and lose or add less than one record a lane."""
    what = shards, shuffle, lanes, share, epochs, ends, way
    source = write(numbered(tmp_path, what), tuple((20,) * records for records in shards))
    write_index(source, 100)
    values = {
        "lanes": lanes,
        "shuffle": shuffle,
        "shuffle_window": 900,
        "epochs": epochs,
        "index": True,
        "remainder": ends,
        "batch_size": share,
    }

    async def main() -> list[list[Batch]]:
        async with Reading.of(source, way, **values) as reading:
            collective = Collective(8)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(reading, rank, collective)) for rank in range(8)]
        return [task.result() for task in tasks]

    async def one(reading: Reading, rank: int, collective: Collective) -> list[Batch]:
        async with reading.opened(rank, 8, share) as source:
            return await collective.take_all(source)

    ranks = asyncio.run(main())
    every, size = sum(shards) * epochs, 8 * share
    assert len({len(batches) for batches in ranks}) == 1
    assert {len(batch) for batch in chain(*ranks)} <= {share}
    found = Counter(
        origin
        for batch in chain(*ranks)
        for origin, is_there in zip(identities([batch]), there(batch), strict=True)
        if is_there
    )
    assert max(found.values(), default=0) <= epochs
    lost = every - found.total()
    if ends == "drop":
        assert 0 <= lost < lanes + size
    else:
        assert lost == 0
        assert 0 <= len(ranks[0]) * size - every < lanes + size


def there(batch: Batch) -> list[bool]:
    return [True] * len(batch) if batch.mask is None else batch.mask.tolist()


# -- single records --------------------------------------------------------------------------------


def singles(source: str, rank: int = 0, world_size: int = 1, **values: Any) -> Stream:
    few = {"memory_budget": "32MiB", "max_concurrency": 8}  # as of `settings_of`
    values = {"lanes": 4, "batch_size": None, "engine": "thread", **few, **values}
    return sr.open(source, rank=rank, world_size=world_size, **values)


@pytest.fixture
def source(tmp_path: Path) -> str:
    """Write two lanes of two shards each; one has records of which several travel together."""
    return write(tmp_path, tuple((20,) * records for records in (9, 3, 5, 7)))


def taken(stream: Stream, most: int) -> tuple[list[bytes], list[Any]]:
    """Return the next records, and the state after each."""
    records, states = [], []
    for record in sr.take(stream, most):
        records.append(bytes(record))
        states.append(json.loads(json.dumps(stream.state_dict())))
    stream.close()
    return records, states


def test_merging_states_of_single_records_repeats_and_loses_none(source: str) -> None:
    """States in the middle of records that travelled together are refused, with the reason."""
    both = [taken(singles(source, rank, 2, epochs=None), 30) for rank in (0, 1)]
    whole, _ = taken(singles(source, epochs=None), 60)
    for k in stops(range(1, 31), every=3):
        states = [states[k - 1] for _, states in both]
        stream = singles(source, epochs=None)
        stream.load_state_dict(states)
        if any(state["skip"] for state in states):
            with pytest.raises(MalformedPosition, match="in the middle of single records"):
                next(stream)
            stream.close()
            continue
        rest, _ = taken(stream, 60 - 2 * k)
        before = [record for records, _ in both for record in records[:k]]
        assert Counter(before + rest) == Counter(whole)


def test_each_rank_of_single_records_resumes_at_every_record(source: str) -> None:
    for rank in (0, 1):
        whole, states = taken(singles(source, rank, 2, epochs=None), 30)
        for k in stops(range(1, 30)):
            stream = singles(source, rank, 2, epochs=None)
            stream.load_state_dict(states[k - 1])
            assert whole[:k] + taken(stream, 30 - k)[0] == whole


def test_by_record_a_state_of_single_records_serves_as_many_ranks(source: str) -> None:
    write_index(source, 100)
    values: dict[str, Any] = {"index": True, "remainder": "drop"}
    first, second = (taken(singles(source, rank, 2, **values), 99) for rank in (0, 1))
    assert len(first[0]) == len(second[0]) == 12
    for k in stops(range(1, 12)):
        stream = singles(source, 1, 2, **values)
        stream.load_state_dict(first[1][k - 1])
        assert second[0][:k] + taken(stream, 99)[0] == second[0]
        other = singles(source, 0, 4, **values)
        other.load_state_dict(first[1][k - 1])
        with pytest.raises(MalformedPosition, match="single records of one rank of 2"):
            next(other)
        other.close()
