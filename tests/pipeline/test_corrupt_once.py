"""A payload that is corrupt is read once more, before anything behind it is delivered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamrec.errors import CorruptRecord
from streamrec.flow.channel import EndOfStream
from streamrec.formats.shards import tfrecord
from streamrec.formats.shards.tfrecord import frame
from tests.pipeline.simulated_store import (
    NO_TROUBLE,
    SimulatedStore,
    Trouble,
    set_executors,
    simulated,
)
from tests.pipeline.small_datasets import contents, identities, oracle, payload
from tests.pipeline.strategies import orders, shards_of
from tests.pipeline.test_corners import dataset_over, receive
from tests.support import examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.pipeline.dataset import Dataset
    from tests.pipeline.strategies import Shards

MANY = settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
WIDE = orders(
    3000,
    2,
    lanes=st.integers(1, 5),
    batch_size=st.one_of(st.none(), st.integers(1, 9)),
    length_buckets=st.sampled_from([None, 2, 3]),
).filter(lambda order: order["batch_size"] or not order["length_buckets"])


@pytest.fixture(autouse=True)
def _nothing_is_done_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    set_executors(monkeypatch)
    monkeypatch.setattr(tfrecord, "LARGE", 0)  # checked late, where that is possible


def store_of(shards: Shards) -> SimulatedStore:
    records = {
        f"o{s:03}": [payload(s, i, length) for i, length in enumerate(lengths)]
        for s, lengths in enumerate(shards)
    }
    return SimulatedStore({url: b"".join(map(frame, them)) for url, them in records.items()})


def flip_once(url: str, offset: int) -> Callable[[int, str, int, int], Trouble]:
    """Make a byte come wrong the first time that it is read."""
    seen: list[int] = []

    def trouble(number: int, asked: str, start: int, stop: int) -> Trouble:
        if asked == url and start <= offset < stop and not seen:
            seen.append(number)
            return Trouble(flips=offset)
        return NO_TROUBLE

    return trouble


@MANY
@given(shards_of(6, 8, 300), WIDE, st.randoms(use_true_random=False))
def test_a_byte_that_is_wrong_once_changes_nothing(
    shards: Shards, order: dict[str, Any], random: Any
) -> None:
    store = store_of(shards)
    url = random.choice([url for url, data in store.objects.items() if data])
    store.trouble = flip_once(url, random.randrange(len(store.objects[url])))
    delivers_what_the_oracle_says(store, shards, order)


@simulated
async def delivers_what_the_oracle_says(
    store: SimulatedStore, shards: Shards, order: dict[str, Any]
) -> None:
    dataset = dataset_over(store, known=True, **order)
    size = order["batch_size"]
    run = dataset.run(rank=0, world_size=1, batch_size=size, position=None)
    batches = await receive(run)
    expected = oracle(shards, dataset.settings, dataset.lanes).rank(0, 1, range(order["epochs"]))
    pairs = [(shard, record) for _, shard, record in expected]
    assert identities(batches) == pairs
    assert contents(batches) == [payload(s, i, shards[s][i]) for s, i in pairs]
    statistics = run.statistics()
    assert statistics["refetched"] == 1
    assert statistics["bytes_used"] == order["epochs"] * sum(map(len, store.objects.values()))
    assert statistics["requests"] == len(store.asked)
    again = await receive(dataset.run(rank=0, world_size=1, batch_size=size, position=None))
    if size:
        assert [b.next_position for b in batches] == [b.next_position for b in again]
    await dataset.aclose()


SHARDS = ((40,) * 6,) * 3
"""Records of three shards, which come shard by shard in one lane."""
PLACE = 2 * (40 + 16) + 20
"""Place in the third record's payload."""


def one_lane(trouble: Callable[[int, str, int, int], Trouble], **values: Any) -> Dataset:
    store = store_of(SHARDS)
    store.trouble = trouble
    values = {"lanes": 1, "shuffle": False, "shuffle_window": 4000, "batch_size": 2, **values}
    return dataset_over(store, known=True, **values)


@simulated
async def test_what_comes_before_a_corrupt_record_is_delivered_and_then_the_error() -> None:
    dataset = one_lane(lambda _, url, *__: Trouble(flips=PLACE) if url == "o001" else NO_TROUBLE)
    run = dataset.run(rank=0, world_size=1, batch_size=2, position=None)
    async with run:
        batches = [await run.receive() for _ in range(4)]
        assert identities(batches) == [(0, i) for i in range(6)] + [(1, 0), (1, 1)]
        for _ in range(2):
            with pytest.raises(CorruptRecord) as caught:
                await run.receive()
            assert (caught.value.url, caught.value.record) == ("o001", 2)
            assert run.position == batches[-1].next_position
    await dataset.aclose()


@simulated
async def test_a_receive_that_is_cancelled_while_it_reads_again_loses_nothing() -> None:
    for steps in range(1, 30):
        dataset = one_lane(flip_once("o000", PLACE))
        run = dataset.run(rank=0, world_size=1, batch_size=2, position=None)
        async with run:
            batches = [await run.receive()]
            waiting = asyncio.ensure_future(run.receive())
            for _ in range(steps):
                await asyncio.sleep(0)
            if not waiting.done():
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            else:
                batches.append(waiting.result())
            with pytest.raises(EndOfStream):
                while True:
                    batches.append(await run.receive())
        assert identities(batches) == [(s, i) for s in range(3) for i in range(6)]
        await dataset.aclose()


@simulated
async def test_a_run_that_was_halted_still_delivers_what_it_had_ready() -> None:
    """The corrupt batch is among those that were ready, so the run begins again for it."""
    dataset = one_lane(flip_once("o000", PLACE))
    run = dataset.run(rank=0, world_size=1, batch_size=2, position=None)
    async with run:
        batches = [await run.receive()]
        end = await run.halt()
        assert end is not None
        while run.position.step < end.step:
            batches.append(await run.receive())
        assert run.position == end
        assert run.statistics()["refetched"] == 1
    assert len(batches) > 2
    assert identities(batches) == [(s, i) for s in range(3) for i in range(6)][: 2 * len(batches)]
    await dataset.aclose()


@simulated
async def test_what_is_unchecked_stays_so() -> None:
    dataset = one_lane(flip_once("o000", PLACE), check_crc=False)
    run = dataset.run(rank=0, world_size=1, batch_size=2, position=None)
    batches = await receive(run)
    assert len(identities(batches)) == 18
    assert run.statistics()["refetched"] == 0
    await dataset.aclose()


@pytest.mark.parametrize(
    "way",
    [
        {"ordered": False},
        {"on_corrupt": "skip", "corrupt_budget": 1},
    ],
)
@simulated
async def test_only_the_range_with_it_is_read_again(way: dict[str, Any]) -> None:
    dataset = one_lane(flip_once("o000", PLACE), **way)
    run = dataset.run(rank=0, world_size=1, batch_size=2, position=None)
    batches = await receive(run)
    assert sorted(identities(batches)) == [(s, i) for s in range(3) for i in range(6)]
    assert run.statistics()["refetched"] == 1
    await dataset.aclose()


@settings(MANY, max_examples=examples(40))
@given(shards_of(4, 8, 300), WIDE, st.randoms(use_true_random=False))
def test_behind_a_corrupt_record_a_run_that_skips_it_has_the_rest(
    shards: Shards, order: dict[str, Any], random: Any
) -> None:
    """A window gives no record of its permutation twice, and loses none.

    The window of a run that skips the record has its place, so it is in the same order.
    """
    store = store_of(shards)
    url = random.choice([url for url, data in store.objects.items() if data])
    place = random.randrange(len(shards[int(url[1:])]))
    begin = sum(length + 16 for length in shards[int(url[1:])][:place])
    content = bytearray(store.objects[url])
    content[begin + 12 + random.randrange(shards[int(url[1:])][place] + 4)] ^= 1
    store.objects = {**store.objects, url: bytes(content)}
    goes_on_behind(store, shards, {**order, "epochs": 1}, (int(url[1:]), place))


@simulated
async def goes_on_behind(
    store: SimulatedStore, shards: Shards, order: dict[str, Any], corrupt: tuple[int, int]
) -> None:
    dataset = dataset_over(store, known=True, **order)
    size, batches = order["batch_size"], []
    run = dataset.run(rank=0, world_size=1, batch_size=size, position=None)
    async with run:
        with pytest.raises(CorruptRecord):
            while True:
                batches.append(await run.receive())
    skips = dataset_over(store, known=True, **order, on_corrupt="skip", corrupt_budget=1)
    every = [(s, i) for s, lengths in enumerate(shards) for i in range(len(lengths))]
    for k, position in enumerate([None, *(batch.next_position for batch in batches)]):
        again = skips.run(rank=0, world_size=1, batch_size=size, position=position)
        given = [*batches[:k], *await receive(again)]
        assert sorted([*identities(given), corrupt]) == every
    await dataset.aclose()
    await skips.aclose()


SEEN: list[bytes] = []


def note(columns: Any) -> Any:
    SEEN.extend(columns["records"].to_list())
    return np.ones(len(columns["records"]), bool)


def noted(columns: Any) -> Any:
    note(columns)
    return columns


@pytest.mark.parametrize("function", [{"filter": note}, {"map": noted}, {"transform": noted}])
@simulated
async def test_a_function_never_sees_what_is_corrupt(function: dict[str, Any]) -> None:
    SEEN.clear()
    dataset = one_lane(flip_once("o000", PLACE), **function)
    run = dataset.run(rank=0, world_size=1, batch_size=2, position=None)
    await receive(run)
    assert run.statistics()["refetched"] == 1
    assert set(SEEN) == {payload(s, i, 40) for s in range(3) for i in range(6)}
    await dataset.aclose()
