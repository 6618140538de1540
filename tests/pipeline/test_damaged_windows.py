"""Windows with damaged records: a state serves runs that treat damage in any other way."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from streamrec.errors import DataError
from streamrec.flow.channel import EndOfStream
from streamrec.formats.shards import tfrecord
from streamrec.formats.shards.tfrecord import frame
from streamrec.pipeline.lane import damage_policy
from tests.pipeline.simulated_store import InlineExecutor, SimulatedStore, set_executors, simulated
from tests.pipeline.small_datasets import (
    Record,
    contents,
    identities,
    oracle,
    payload,
    position_after,
)
from tests.pipeline.strategies import shards_of
from tests.pipeline.test_corners import dataset_over
from tests.support import examples

if TYPE_CHECKING:
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.dataset import Dataset
    from streamrec.plan.state.position import Position
    from tests.pipeline.strategies import Shards

MANY = settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
Damage = dict[tuple[int, int], int]
"""The records, as (shard, number), of which a byte is wrong, and which of those it may be in."""

WAYS: dict[str, dict[str, Any]] = {
    "raise": {},
    "unchecked": {"check_crc": False},
    "skip": {"on_corrupt": "skip", "corrupt_budget": 1.0},
    "counted": {"on_corrupt": "skip", "corrupt_budget": 1.0, "steps_per_epoch": 0},
    "quarantine": {"on_corrupt": "quarantine", "corrupt_budget": 1.0, "quarantine": "memory://q"},
}
"""Ways of runs to treat damage; ``steps_per_epoch`` is set to suit the data."""

SHARDS = shards_of(4, 7, 120)
ORDERS = st.fixed_dictionaries(
    {
        "shuffle": st.booleans(),
        "seed": st.integers(0, 9),
        "shuffle_window": st.integers(0, 4000),
        "lanes": st.integers(1, 3),
        "batch_size": st.integers(1, 3),
    }
)


@pytest.fixture(autouse=True)
def _nothing_is_done_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    set_executors(monkeypatch)
    monkeypatch.setattr(damage_policy, "ThreadPoolExecutor", InlineExecutor)
    monkeypatch.setattr(tfrecord, "LARGE", 0)  # "raise" checks late
    monkeypatch.setattr(damage_policy.log, "disabled", True)


@st.composite
def damages(draw: st.DrawFn, /, shards: Shards) -> Damage:
    """Draw damaged records with an intact length: a byte behind it is wrong."""
    every = [(s, i) for s, lengths in enumerate(shards) for i in range(len(lengths))]
    places = draw(st.lists(st.sampled_from(every), max_size=4, unique=True))
    # of the length's CRC, or of the payload and its own CRC
    return {(s, i): draw(st.integers(8, shards[s][i] + 15)) for s, i in places}


def store_of(shards: Shards, damage: Damage) -> SimulatedStore:
    objects = {}
    for s, lengths in enumerate(shards):
        frames = [bytearray(frame(payload(s, i, length))) for i, length in enumerate(lengths)]
        for i, content in enumerate(frames):
            if (s, i) in damage:
                content[damage[s, i]] ^= 0x20
        objects[f"o{s:03}"] = b"".join(frames)
    return SimulatedStore(objects)


def dataset_of(store: SimulatedStore, shards: Shards, order: dict[str, Any], way: str) -> Dataset:
    """Make a dataset of two epochs, or of the steps of one and a half."""
    values = {"epochs": 2, "max_concurrency": 4, **order, **WAYS[way]}
    if "steps_per_epoch" in values:
        values |= {"steps_per_epoch": steps_of(shards, order), "epochs": 1}
    return dataset_over(store, known=True, **values)


def steps_of(shards: Shards, order: dict[str, Any]) -> int:
    return int(sum(map(len, shards)) * 3 // 2 // order["batch_size"] + 1)


async def read(
    store: SimulatedStore,
    shards: Shards,
    order: dict[str, Any],
    way: str,
    position: Position | None = None,
) -> list[Batch]:
    """Read a run to its end, or to the error that it should raise."""
    dataset = dataset_of(store, shards, order, way)
    size, batches = order["batch_size"], []
    run = dataset.run(rank=0, world_size=1, batch_size=size, position=position)
    try:
        async with run:
            while True:
                batches.append(await run.receive())
    except EndOfStream:
        pass
    except DataError as error:
        assert way == "raise", error  # the others go on
    await dataset.aclose()
    return batches


def intact(batches: list[Batch], shards: Shards, damage: Damage) -> list[Record]:
    """Return the intact records, with the lowest epoch of their batch, and check their bytes."""
    epochs = [batch.epoch for batch in batches for _ in range(len(batch))]
    rows = zip(epochs, identities(batches), contents(batches), strict=True)
    whole = [(epoch, s, i, content) for epoch, (s, i), content in rows if (s, i) not in damage]
    for _, s, i, content in whole:
        assert content == payload(s, i, shards[s][i])
    return [(epoch, s, i) for epoch, s, i, _ in whole]


def pairs(records: list[Record]) -> list[tuple[int, int]]:
    return [record[1:] for record in records]


@st.composite
def cases(draw: st.DrawFn, /, **more: st.SearchStrategy[Any]) -> tuple[Any, ...]:
    """Draw shards, their damage, an order, and two runs' ways of treating damage."""
    shards = draw(SHARDS)
    damage = draw(damages(shards))
    order = {**draw(ORDERS), **draw(st.fixed_dictionaries(more))}
    ways = st.sampled_from(sorted(WAYS))
    return shards, damage, order, draw(ways), draw(ways)


SHUFFLED = {"shuffle": True, "seed": 0, "shuffle_window": 0, "lanes": 3, "batch_size": 1}
"""An order in which one lane waits for several epochs for the only record."""
IN_BUCKETS = {**SHUFFLED, "shuffle": False, "lanes": 2, "length_buckets": 2}
"""An order in which one lane has nothing but the first shard's only record."""
MOST_EPOCHS = 30
"""The most epochs, for each step, that a lane of these orders waits for its next record."""


async def intact_lanes(
    store: SimulatedStore, shards: Shards, damage: Damage, order: dict[str, Any], ways: set[str]
) -> list[list[Record]]:
    """Return the intact records of each lane, in order."""
    dataset = dataset_of(store, shards, order, min(ways))
    expected = oracle(shards, dataset.settings, dataset.lanes)
    epochs = range(MOST_EPOCHS * (steps_of(shards, order) + 1))
    every = [expected.lane(lane, epochs) for lane in range(dataset.lanes)]
    await dataset.aclose()
    lanes = [[record for record in lane if record[1:] not in damage] for lane in every]
    is_hopeless = any(lane and not whole for lane, whole in zip(every, lanes, strict=True))
    assume(not is_hopeless or "counted" not in ways)  # there it is an error
    return lanes


@MANY
@given(cases(batch_size=st.just(1)))
@example((((0,), (), ()), {}, SHUFFLED, "raise", "counted"))
def test_what_one_run_has_begun_another_goes_on_with(case: tuple[Any, ...]) -> None:
    """In each lane the order is that of the undamaged shards, less the damaged records."""
    goes_on_in_order(*case)


@simulated
async def goes_on_in_order(
    shards: Shards, damage: Damage, order: dict[str, Any], before: str, after: str
) -> None:
    store = store_of(shards, damage)
    lanes = await intact_lanes(store, shards, damage, order, {before, after})
    batches = await read(store, shards, order, before)
    for k, position in enumerate([None, *map(position_after, batches)]):
        if after == "counted" and k > steps_of(shards, order):
            break
        tail = await read(store, shards, order, after, position)
        told = intact([*batches[:k], *tail], shards, damage)
        by_lane = [[record for record in told if record in set(lane)] for lane in lanes]
        assert by_lane == [lane[: len(one)] for one, lane in zip(by_lane, lanes, strict=True)]
        assert len(told) == sum(map(len, by_lane))
        if after in {"unchecked", "skip", "quarantine"}:
            assert {record for lane in lanes for record in lane if record[0] < 2} <= set(told)


@MANY
@given(cases(length_buckets=st.integers(2, 3)))
@example((((0,), (0, 0, 0)), {(0, 0): 8}, IN_BUCKETS, "counted", "counted"))
def test_with_buckets_each_comes_once_an_epoch(case: tuple[Any, ...]) -> None:
    """The earlier rows say exactly which places are still to come."""
    goes_on_with_buckets(*case)


@simulated
async def goes_on_with_buckets(
    shards: Shards, damage: Damage, order: dict[str, Any], before: str, after: str
) -> None:
    store = store_of(shards, damage)
    if "counted" in {before, after}:
        await intact_lanes(store, shards, damage, order, {"counted"})
    batches = await read(store, shards, order, before)
    whole = pairs(intact(await read(store, shards, order, "skip"), shards, damage))
    count = sum(map(len, shards)) - len(damage)
    for k, position in enumerate([None, *map(position_after, batches)]):
        if after == "counted" and k > steps_of(shards, order):
            break
        tail = await read(store, shards, order, after, position)
        rows = pairs(intact([*batches[:k], *tail], shards, damage))
        if after in {"unchecked", "skip", "quarantine"}:
            assert min(Counter(rows).values(), default=2) >= 2
            assert before == "counted" or len(rows) == 2 * count
            assert len(set(rows)) == count
        if order["lanes"] == 1:
            epochs = [rows[at : at + count] for at in range(0, len(rows), count or 1)]
            assert all(len(set(epoch)) == len(epoch) for epoch in epochs)
        if {before, after} <= {"raise", "skip", "quarantine"}:
            assert rows == whole[: len(rows)]
