"""``ordered=False``: first come, first served; every record once all the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec.errors import ConfigError, OtherOrder, StreamrecError
from streamrec.flow.channel import EndOfStream
from streamrec.plan.state.position import Position
from tests.pipeline.simulated_store import Trouble, set_executors, simulated
from tests.pipeline.small_datasets import identities
from tests.pipeline.test_corners import build, dataset_over
from tests.support import examples

if TYPE_CHECKING:
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.dataset import Dataset

SHARDS, RECORDS, SIZE = 6, 20, 50_000
EVERYTHING = Counter((shard, record) for shard in range(SHARDS) for record in range(RECORDS))
STALL = 12.0
"""Seconds; short enough not to be taken for a dead connection."""


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    set_executors(monkeypatch)


def slow_shard(number: int, url: str, start: int, stop: int) -> Trouble:
    """Make all requests for shard 2 slow, hedges too."""
    return Trouble(stalls_after=0, stall=STALL) if url == "o002" else Trouble()


def shards(**values: Any) -> tuple[Any, Dataset]:
    store, _ = build([(RECORDS, SIZE)] * SHARDS)
    values = {"ordered": False, "batch_size": 7, "memory_budget": "64MiB", **values}
    return store, dataset_over(store, known=True, **values)


async def receive(
    dataset: Dataset, most: int = 1000, position: Position | None = None, **ranks: Any
) -> tuple[list[Batch], list[float]]:
    """Receive batches, with the time of each."""
    clock = asyncio.get_running_loop().time
    batches: list[Batch] = []
    times: list[float] = []
    ranks = {"rank": 0, "world_size": 1, **ranks}
    batch_size = dataset.settings.batch_size
    async with dataset.run(batch_size=batch_size, position=position, **ranks) as run:
        while len(batches) < most:
            try:
                batches.append(await run.receive())
            except EndOfStream:
                break
            times.append(clock())
    return batches, times


@simulated
async def test_a_stalled_lane_stalls_nobody_else() -> None:
    ordered: list[float] = []
    unordered: list[float] = []
    for times, is_ordered in ((ordered, True), (unordered, False)):
        store, dataset = shards(ordered=is_ordered)
        store.trouble = slow_shard
        began = asyncio.get_running_loop().time()
        batches, came = await receive(dataset)
        assert Counter(identities(batches)) == EVERYTHING
        assert [len(batch) for batch in batches[:-1]] == [7] * (len(batches) - 1)
        times += [time - began for time in came]
        await dataset.aclose()
    others = (SHARDS - 1) * RECORDS // 7
    assert min(ordered) > 1.0, "every batch but the first rows needs the lane that stalls"
    assert max(unordered[:others]) < 1.0 < unordered[-1]


@simulated
async def test_without_trouble_it_is_fair() -> None:
    """Each lane gives about as much: none is left for the end."""
    _, dataset = shards()
    batches, _ = await receive(dataset, 8)
    given = Counter(shard for shard, _ in identities(batches))
    assert len(given) == SHARDS
    assert max(given.values()) <= 2 * min(given.values())
    await dataset.aclose()


@simulated
async def test_resuming_repeats_and_skips_nothing() -> None:
    for k in range(1, 18, 3):
        store, dataset = shards(shuffle=True, shuffle_window="1MiB")
        store.trouble = slow_shard
        head, _ = await receive(dataset, k)
        store.trouble = lambda *_: Trouble()
        position = Position.from_dict(head[-1].next_position.to_dict())
        tail, _ = await receive(dataset, position=position)
        assert Counter(identities(head + tail)) == EVERYTHING
        await dataset.aclose()


@simulated
async def test_the_states_of_all_ranks_serve_another_world_size() -> None:
    _, dataset = shards(epochs=None, batch_size=4)
    heads = [(await receive(dataset, 4, rank=rank, world_size=3))[0] for rank in range(3)]
    await dataset.aclose()
    positions = [head[-1].next_position for head in heads]
    _, dataset = shards(epochs=None, batch_size=12)
    whole = Position.merge(positions, rank=0, world_size=1)
    tail, _ = await receive(dataset, (SHARDS * RECORDS - 48) // 12, whole)
    assert Counter(identities([*[batch for head in heads for batch in head], *tail])) == EVERYTHING
    await dataset.aclose()


@simulated
async def test_a_state_is_marked() -> None:
    _, dataset = shards()
    batches, _ = await receive(dataset, 2)
    await dataset.aclose()
    position = batches[-1].next_position
    assert position.fingerprint.order == "shard, as it comes"
    _, ordered = shards(ordered=True)
    with pytest.raises(OtherOrder, match="order was 'shard, as it comes' and is 'shard'"):
        ordered.run(rank=0, world_size=1, batch_size=7, position=position)
    await ordered.aclose()


@simulated
async def test_single_records_have_an_order() -> None:
    _, dataset = shards(batch_size=None)
    with pytest.raises(ConfigError, match="set batch_size"):
        await receive(dataset)
    await dataset.aclose()


@simulated
async def test_an_error_in_any_lane_comes_after_what_is_intact() -> None:
    store, dataset = shards()
    store.trouble = lambda number, url, start, stop: (
        Trouble(flips=start + 100) if url == "o002" and start == 0 else Trouble()
    )
    with pytest.raises(StreamrecError, match="CRC"):
        await receive(dataset)
    await dataset.aclose()


@settings(max_examples=examples(20), deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
    st.integers(1, 6),
    st.integers(1, 9),
    st.integers(1, 2),
    st.integers(0, 99),
)
def test_every_record_once(
    counts: list[int], lanes: int, size: int, epochs: int, seed: int
) -> None:
    def stall(_: int, url: str, start: int, __: int) -> Trouble:
        # By the place and not by the turn: how many requests there are depends on timing.
        seconds = Random(f"{seed} {url} {start}").choice([0.0, 0.5, 3.0])
        return Trouble(stalls_after=0, stall=seconds)

    @simulated
    async def main() -> None:
        store, _ = build([(count, 100) for count in counts])
        store.trouble = stall
        dataset = dataset_over(
            store, known=True, ordered=False, lanes=lanes, batch_size=size, epochs=epochs
        )
        batches, _ = await receive(dataset)
        expected = Counter((s, i) for s, count in enumerate(counts) for i in range(count))
        assert Counter(identities(batches)) == Counter(dict.fromkeys(expected, epochs))
        await dataset.aclose()

    main()
