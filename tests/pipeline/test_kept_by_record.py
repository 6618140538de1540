"""Filters and packs in the order by record, where the counts of lanes are unknown."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec.config import Pack
from streamrec.errors import (
    ConfigError,
    CorruptBudgetExceeded,
    DataError,
    MalformedPosition,
    OtherOrder,
)
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.state.position import Position
from streamrec.plan.state.resume_point import Beginning
from tests.pipeline import user_functions
from tests.pipeline.damaged_index import Damaged, damaged
from tests.pipeline.lane.test_packing_stage import FEATURES, delivered, tokens_of
from tests.pipeline.lane.test_packing_stage import contents as packs
from tests.pipeline.lane.test_packing_stage import write as write_tokens
from tests.pipeline.small_datasets import (
    contents,
    identities,
    payload,
    position_after,
    receive_all,
    record_oracle,
    settings_of,
    write,
    write_index,
)
from tests.pipeline.strategies import Shards, orders, shards_of
from tests.pipeline.test_damage import ALL, rows
from tests.support import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.pipeline.batch.batch import Batch

SHARDS = shards_of(4, 9, 60)
ORDERS = orders(
    1500, 2, lanes=st.integers(1, 6), batch_size=st.one_of(st.none(), st.integers(1, 9))
)
PACKS = st.sampled_from(
    [Pack(6, bins=1), Pack(8, bins=3), Pack(5, split=True), Pack(4, documents=1)]
)
CHUNKS = st.integers(1, 400)
FEW = settings(max_examples=examples(25), deadline=None)


def is_kept(length: int) -> bool:
    """Return whether ``user_functions.is_short`` keeps a record of this length."""
    return length % 3 != 0


def indexed(directory: str, shards: Shards, chunk: int) -> str:
    source = write(Path(directory), shards)
    write_index(source, chunk)
    return source


# -- one rank --------------------------------------------------------------------------------------


@FEW
@given(SHARDS, CHUNKS, ORDERS, st.booleans())
def test_the_order_is_that_of_the_kept_records_and_every_resume_is_exact(
    shards: Shards, chunk: int, order: dict[str, Any], skips: bool
) -> None:
    values = {**order, "filter": user_functions.is_short, "index": True}
    careful = {"on_corrupt": "skip", "corrupt_budget": 1} if skips else {}

    async def main(source: str) -> None:
        dataset = await Dataset.open(settings_of(source, **values))
        other = await Dataset.open(settings_of(source, **values, **careful))
        oracle = record_oracle(shards, dataset.settings, order["lanes"], chunk, is_kept)
        expected = [(s, i) for _, s, i in oracle.rank(0, 1, range(order["epochs"]))]
        whole = await receive_all(dataset)
        assert identities(whole) == expected
        assert contents(whole) == [payload(s, i, shards[s][i]) for s, i in expected]
        for k, batch in enumerate(whole, start=1):
            tail = await receive_all(other, position=position_after(batch))
            assert identities(whole[:k] + tail) == expected
            if order["batch_size"]:
                assert [b.next_position for b in tail] == [b.next_position for b in whole[k:]]
        await dataset.aclose()
        await other.aclose()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(indexed(directory, shards, chunk)))


@FEW
@given(damaged(damages=2), ORDERS)
def test_what_is_intact_is_kept_or_not_and_damage_leaves_no_rows(
    few: Damaged, order: dict[str, Any]
) -> None:
    there = {place: row for place, row in few.rows().items() if row is not None}
    kept = Counter(row for row in there.values() if is_kept(len(row)))

    async def main(source: str) -> None:
        careful: Any = {"on_corrupt": "skip", "corrupt_budget": ALL, "index": True}
        dataset = await Dataset.open(
            settings_of(source, filter=user_functions.is_short, **careful, **order)
        )
        whole = await receive_all(dataset)
        epochs = order["epochs"]
        assert Counter(contents(whole)) == Counter({row: kept[row] * epochs for row in kept})
        assert all(batch.mask is None for batch in whole)
        for k, batch in enumerate(whole, start=1):
            tail = await receive_all(dataset, position=position_after(batch))
            assert rows(tail) == rows(whole[k:])
        await dataset.aclose()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(few.write(Path(directory))))


@FEW
@given(SHARDS, CHUNKS, ORDERS, PACKS, st.booleans())
def test_every_token_once_an_epoch_and_every_resume_is_exact(
    shards: Shards, chunk: int, order: dict[str, Any], pack: Pack, filters: bool
) -> None:
    few = tuple(tuple(length % 13 for length in lengths) for lengths in shards)
    values = {**order, "pack": pack, "index": True, "features": FEATURES}
    values["batch_size"] = order["batch_size"] or 1
    values |= {"filter": user_functions.has_even_number} if filters else {}

    async def main(source: str) -> None:
        dataset = await Dataset.open(settings_of(source, **values))
        whole = await receive_all(dataset)
        length = pack.length if isinstance(pack.length, int) and not pack.split else 99
        expected = Counter(
            token
            for s, lengths in enumerate(few)
            for i, n in enumerate(lengths)
            for token in tokens_of(s, i, n)[:length]
            if not filters or n % 2 == 0
        )
        assert Counter(delivered(whole)) == Counter(dict.fromkeys(expected, order["epochs"]))
        for k, batch in enumerate(whole, start=1):
            tail = await receive_all(dataset, position=position_after(batch))
            assert packs(tail) == packs(whole[k:])
            assert [b.next_position for b in tail] == [b.next_position for b in whole[k:]]
        await dataset.aclose()

    with tempfile.TemporaryDirectory() as directory:
        source = write_tokens(Path(directory), few)
        write_index(source, chunk)
        asyncio.run(main(source))


# -- several ranks ---------------------------------------------------------------------------------


async def global_batches(
    source: str, world_size: int, states: Sequence[Position], most: int, **values: Any
) -> tuple[list[Any], list[Position]]:
    """Join the ranks' batches of each step, with the ranks' states behind it."""
    dataset = await Dataset.open(settings_of(source, index=True, epochs=None, **values))
    ranks = []
    for rank in range(world_size):
        place = Position.merge(states, rank=rank, world_size=world_size) if states else None
        run = dataset.run(
            rank=rank, world_size=world_size, batch_size=12 // world_size, position=place
        )
        async with run:
            ranks.append([await run.receive() for _ in range(most)])
    await dataset.aclose()
    steps = zip(*ranks, strict=True)
    together = [sorted(str(row) for batch in step for row in rows_of(batch)) for step in steps]
    return together, [position_after(batches[-1]) for batches in ranks]


def rows_of(batch: Batch) -> list[Any]:
    """Return each row's columns and origin."""
    columns = [batch[name].tolist() if len(batch) else [] for name in batch if name != "records"]
    return list(zip(identities([batch]), *columns, strict=True))


STAGES = st.sampled_from(
    [
        {"filter": user_functions.is_short},
        {"pack": Pack(6, bins=2), "features": FEATURES},
        {
            "pack": Pack(5, split=True),
            "features": FEATURES,
            "filter": user_functions.has_even_number,
        },
    ]
)


@FEW
@given(
    SHARDS, CHUNKS, ORDERS, STAGES, st.lists(st.sampled_from([1, 2, 3, 6]), min_size=1, max_size=3)
)
def test_resized_again_and_again(
    shards: Shards, chunk: int, order: dict[str, Any], stage: dict[str, Any], sizes: list[int]
) -> None:
    """The states of all ranks of one step go on with the same global batches."""
    few = tuple(tuple(length % 13 for length in lengths) for lengths in shards)
    values = {**order, **stage, "lanes": 6}
    del values["batch_size"], values["epochs"]

    async def main(source: str) -> None:
        try:
            whole, _ = await global_batches(source, 1, [], 2 * len(sizes), **values)
        except DataError as error:  # there is a lane for which nothing is left
            assert "in several passes" in error.message
            return
        resized: list[Any] = []
        states: list[Position] = []
        for world_size in sizes:
            some, states = await global_batches(source, world_size, states, 2, **values)
            resized += some
        assert resized == whole

    with tempfile.TemporaryDirectory() as directory:
        make = write_tokens if "features" in stage else write
        source = make(Path(directory), few)
        write_index(source, chunk)
        asyncio.run(main(source))


# -- what cannot be --------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> str:
    return indexed(str(tmp_path), ((10,) * 9, (10,) * 8), 80)


def opened(source: str, world_size: int = 1, place: Any = None, **values: Any) -> None:
    async def main() -> None:
        values.setdefault("filter", user_functions.is_short)
        dataset = await Dataset.open(settings_of(source, index=True, batch_size=2, **values))
        try:
            dataset.run(rank=0, world_size=world_size, batch_size=2, position=place)
        finally:
            await dataset.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("values", [{}, {"filter": None, "pack": Pack(8)}, {"epochs": 2}])
def test_several_ranks_need_a_number_of_steps(source: str, values: dict[str, Any]) -> None:
    stage = "pack" if "pack" in values else "filter"
    words = f"{stage} makes an unknown number of rows .* set steps_per_epoch"
    with pytest.raises(ConfigError, match=words):
        opened(source, 2, lanes=4, **values)
    opened(source, 1, lanes=4, **values)
    opened(source, 2, lanes=4, steps_per_epoch=3, **{**values, "epochs": 1})


def test_nobody_knows_the_length_of_what_is_kept(source: str) -> None:
    async def length(**values: Any) -> int | None:
        dataset = await Dataset.open(settings_of(source, index=True, batch_size=2, **values))
        await dataset.aclose()
        return dataset.length(2, 1)

    assert asyncio.run(length()) == 9
    assert asyncio.run(length(filter=user_functions.is_short)) is None
    assert asyncio.run(length(pack=Pack(8))) is None
    assert asyncio.run(length(filter=user_functions.is_short, steps_per_epoch=4)) == 4


def test_nobody_can_seek_a_step_of_what_is_kept(source: str) -> None:
    with pytest.raises(ConfigError, match="a step is unknown with filter"):
        opened(source, place=Beginning(0, 5))
    opened(source, place=Beginning(3))


def test_the_order_of_what_is_kept_is_another(source: str) -> None:
    async def state(**values: Any) -> Position:
        dataset = await Dataset.open(settings_of(source, index=True, batch_size=2, **values))
        (batch,) = await receive_all(dataset, most=1)
        await dataset.aclose()
        return position_after(batch)

    counted, kept = asyncio.run(state()), asyncio.run(state(filter=user_functions.is_short))
    with pytest.raises(OtherOrder, match="order was 'record:"):
        opened(source, place=counted)
    with pytest.raises(OtherOrder, match="order was 'record, as kept:"):
        opened(source, place=kept, filter=None)
    assert len(json.dumps(kept.to_dict())) < 1500


@pytest.mark.parametrize(("name", "value"), [("offset", 7), ("offset", 1 << 60), ("record", 99)])
def test_places_outside_of_their_chunks_are_refused(source: str, name: str, value: int) -> None:
    async def first() -> Position:
        dataset = await Dataset.open(
            settings_of(source, index=True, batch_size=2, lanes=3, filter=user_functions.is_short)
        )
        (batch,) = await receive_all(dataset, most=1)
        await dataset.aclose()
        return position_after(batch)

    position = asyncio.run(first())
    opened(source, lanes=3, place=position)
    lanes = position.lanes.copy()
    lanes[name][1] = value
    with pytest.raises(MalformedPosition, match="lane 1 stands at byte"):
        opened(source, lanes=3, place=replace(position, lanes=lanes))


def test_a_lane_of_which_nothing_is_kept_does_not_go_on_for_ever(tmp_path: Path) -> None:
    source = indexed(str(tmp_path), ((9,) * 9,), 80)

    async def main() -> None:
        values: dict[str, Any] = {"index": True, "batch_size": 1, "epochs": None, "lanes": 2}
        dataset = await Dataset.open(settings_of(source, filter=user_functions.is_short, **values))
        try:
            await receive_all(dataset)
        finally:
            await dataset.aclose()

    with pytest.raises(DataError, match="in several passes"):
        asyncio.run(main())


def test_a_lane_in_which_nothing_is_intact_does_not_go_on_for_ever(tmp_path: Path) -> None:
    hole = Damaged(((b"a" * 20,) * 4,), (bytes(144),), 40)

    async def main() -> None:
        values: dict[str, Any] = {"index": True, "batch_size": 1, "epochs": None, "lanes": 2}
        careful: dict[str, Any] = {"on_corrupt": "skip", "corrupt_budget": ALL}
        dataset = await Dataset.open(
            settings_of(hole.write(tmp_path), filter=user_functions.is_short, **values, **careful)
        )
        try:
            await receive_all(dataset)
        finally:
            await dataset.aclose()

    with pytest.raises(CorruptBudgetExceeded, match="without an intact record"):
        asyncio.run(main())
