"""Weights that change while a mix runs: in place, and the same for any stops and world sizes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from streamrec.errors import ConfigError, MalformedPosition, OtherOrder
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.order.mixture import draws_of
from streamrec.plan.order.window import Windows, records_until
from streamrec.plan.state.position import Position
from streamrec.plan.state.resume_point import Beginning, change_from, read_changes
from tests.pipeline.lane.test_mix_source import CODE, ENDLESS, WEB, written
from tests.pipeline.mixes import MixOracle, Pair, mix_of
from tests.pipeline.small_datasets import (
    global_batches,
    identities,
    position_after,
    receive_all,
    receive_ranks,
)
from tests.pipeline.test_run import FEW
from tests.plan.oracle import plainly_drawn
from tests.support import asynchronous, examples

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from streamrec.config import DatasetSettings
    from streamrec.plan.order.mixture import Draws

FEWER = effort(FEW, max_examples=examples(6))
"""Each example opens several runs."""
MOST = 6
SHARDS: Any = st.lists(
    st.lists(st.integers(0, 300), min_size=1, max_size=9).map(tuple), min_size=4, max_size=5
).map(tuple)
MIXES = st.fixed_dictionaries({name: st.tuples(SHARDS, st.floats(0.05, 1)) for name in "abc"})
ORDERS: Any = st.fixed_dictionaries(
    {
        "lanes": st.just(4),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 9),
        "shuffle_window": st.integers(0, 12_000),
        "batch_size": st.just(12),
        "steps_per_epoch": st.just(MOST),
    }
)
WEIGHTS: Any = st.fixed_dictionaries(
    {name: st.sampled_from([0.0, 0.1, 1.0]) for name in "abc"}
).filter(lambda weights: any(weights.values()))
CHANGES = st.lists(st.tuples(st.integers(0, MOST), WEIGHTS), max_size=3)
"""Calls of ``set_weights``: the step, and the weights from there on."""


def text_of(changes: list[tuple[int, Mapping[str, float]]]) -> str:
    text = ""
    for step, weights in changes:
        text = change_from(text, step, weights)
    return text


@dataclass(frozen=True, kw_only=True)
class ChangingOracle(MixOracle):
    """An oracle that draws record by record, each with the weights that hold at its window."""

    changes: str

    def lane(self, lane: int, epoch: int) -> Iterator[Pair]:
        """Return a lane's records in the order of its windows."""
        settings, delivered, number = self.settings, 0, 0
        windows = Windows(int(settings.shuffle_window), self.lanes, settings.seed)
        records = _Records(self, lane)
        draws = self._draws(lane, 0)
        window: list[Pair] = []
        while True:
            epoch_before = records.epoch
            pair = records.draw(draws)
            if records.epoch != epoch_before:
                # The window ends before the record that began an epoch, which opens the next one.
                yield from self._shuffled(windows, lane, epoch_before, number, window)
                delivered, number, window = delivered + len(window), 0, [pair]
                draws = self._draws(lane, delivered)
            else:
                window.append(pair)
            if not settings.shuffle or self._is_full(window, windows.size(lane, number)):
                yield from self._shuffled(windows, lane, records.epoch, number, window)
                delivered, number, window = delivered + len(window), number + 1, []
                draws = self._draws(lane, delivered)

    def _draws(self, lane: int, delivered: int) -> Draws:
        """Return the draws of the last change that is not after so many of the lane's records."""
        settings = self.settings
        assert settings.batch_size is not None
        found: Any = settings.weights
        for step, weights in read_changes(self.changes):
            if delivered * self.lanes + lane >= step * settings.batch_size:
                found = [(0, weights)]
        return draws_of(found, self.lanes, settings.seed)

    def _is_full(self, window: list[Pair], size: int) -> bool:
        lengths = np.array([*(self._length(pair) for pair in window), 0], np.int64)
        return records_until(lengths, size) <= len(window)

    def _shuffled(
        self, windows: Windows, lane: int, epoch: int, number: int, window: list[Pair]
    ) -> list[Pair]:
        if not self.settings.shuffle:
            return window
        shards = np.zeros(len(window), np.int32)
        return [window[i] for i in windows.permutation(lane, epoch, number, shards).tolist()]


class _Records:
    """The records of a lane's components, which are drawn one by one."""

    def __init__(self, oracle: ChangingOracle, lane: int) -> None:
        self._lane, self._n, self.epoch = lane, 0, 0
        self._streams, first = [], 0
        for number, name in enumerate(sorted(oracle.components)):
            shards = len(oracle.components[name])
            self._streams.append(oracle._component(number, shards, first, lane, 0))
            first += shards
        self._epochs = [0] * len(self._streams)

    def draw(self, draws: Draws) -> Pair:
        component = plainly_drawn(draws, self._lane, 0, self._n, set())
        self._epochs[component], pair = next(self._streams[component])
        weights, self._n = draws.phases[0][1], self._n + 1
        lowest = min(e for e, weight in zip(self._epochs, weights, strict=True) if weight)
        self.epoch = max(self.epoch, lowest)
        return pair


@FEWER
@given(MIXES, ORDERS, CHANGES)
def test_draws_what_the_oracle_says(
    tmp_path: Path, mix: Any, order: dict[str, Any], changes: list[Any]
) -> None:
    async def main() -> None:
        components, settings = written(tmp_path, mix, order)
        dataset = await Dataset.open(settings)
        text = text_of(changes)
        whole = await receive_all(dataset, position=Beginning(mix_changes=text))
        oracle = ChangingOracle(components, settings, 4, changes=text)
        assert identities(whole) == list(islice(oracle._round_robin(0, 1, 0), 12 * MOST))
        await dataset.aclose()

    asyncio.run(main())


@FEWER
@given(MIXES, ORDERS, CHANGES)
def test_steps_before_a_change_stay(
    tmp_path: Path, mix: Any, order: dict[str, Any], changes: list[Any]
) -> None:
    async def main() -> None:
        dataset = await Dataset.open(written(tmp_path, mix, order)[1])
        before = await receive_all(dataset)
        after = await receive_all(dataset, position=Beginning(mix_changes=text_of(changes)))
        first = min([step for step, _ in changes], default=MOST)
        assert identities(after[:first]) == identities(before[:first])
        await dataset.aclose()

    asyncio.run(main())


LEGS = st.tuples(
    st.sampled_from([1, 2, 4]), st.integers(1, 4), st.none() | WEIGHTS, st.integers(0, 3)
)
STORIES = st.lists(LEGS, min_size=2, max_size=4)
"""Legs of a job: its ranks, its steps, and weights that change after it, so many steps later."""


@FEWER
@given(MIXES, ORDERS, STORIES)
def test_any_stops_and_changes_give_what_a_run_gives_that_knew_them(
    tmp_path: Path, mix: Any, order: dict[str, Any], story: list[Any]
) -> None:
    settings = written(tmp_path, mix, {**order, "epochs": 2})[1]

    async def main() -> None:
        positions: list[Position] = []
        seen: list[Any] = []
        for world_size, steps, weights, later in story:
            ranks = await receive_ranks(settings, world_size, 12, positions, most=steps)
            seen += global_batches(ranks)
            positions = [position_after(batches[-1]) for batches in ranks]
            if weights is not None:
                step = positions[0].step + later
                changed = change_from(positions[0].mix_changes, step, weights)
                positions = [position.with_changes(changed) for position in positions]
        whole = await _known_before(settings, positions[0].mix_changes, len(seen))
        assert seen == whole

    asyncio.run(main())


async def _known_before(settings: DatasetSettings, changes: str, most: int) -> list[Any]:
    dataset = await Dataset.open(settings)
    batches = await receive_all(dataset, position=Beginning(mix_changes=changes), most=most)
    await dataset.aclose()
    return global_batches([batches])


async def opened(directory: Path, **values: Any) -> Dataset:
    settings = mix_of(
        directory, {"web": WEB, "code": CODE}, {"web": 0.5, "code": 0.5}, **{**ENDLESS, **values}
    )
    return await Dataset.open(settings)


@asynchronous
async def test_without_windows_the_change_is_at_its_record(tmp_path: Path) -> None:
    dataset = await opened(tmp_path, batch_size=5)
    changes = text_of([(0, {"web": 0.0, "code": 1.0}), (3, {"web": 1.0, "code": 0.0})])
    batches = await receive_all(dataset, position=Beginning(mix_changes=changes), most=5)
    assert [{*batch.source.tolist()} for batch in batches] == [{"code"}] * 3 + [{"web"}] * 2
    await dataset.aclose()


@asynchronous
async def test_a_state_counts_the_changes_that_hold(tmp_path: Path) -> None:
    dataset = await opened(tmp_path)
    changes = text_of([(2, {"web": 0.0, "code": 1.0}), (3, {"web": 1.0, "code": 0.0})])
    batches = await receive_all(dataset, position=Beginning(mix_changes=changes), most=4)
    counts = [batch.next_position.lanes["offset"].tolist() for batch in batches]
    assert counts == [[0, 0], [0, 0], [1, 1], [2, 2]]
    forged = position_after(batches[-1]).with_changes(text_of([(2, {"web": 0.0, "code": 1.0})]))
    with pytest.raises(MalformedPosition, match=r"behind 2 changes of weights, of 1; give the"):
        await receive_all(dataset, position=forged)
    await dataset.aclose()


class TestRefusals:
    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"exhausted": "rest", "epochs": 1}, "each epoch counts its own records"),
            ({"batch_size": None}, "single records, whose steps depend on the ranks"),
            ({"filter": "tests.pipeline.user_functions:is_short"}, "with filter the step of a"),
        ],
    )
    @asynchronous
    async def test_settings_without_a_step(
        self, tmp_path: Path, values: dict[str, Any], message: str
    ) -> None:
        dataset = await opened(tmp_path, **values)
        changes = text_of([(2, {"web": 0.0, "code": 1.0})])
        with pytest.raises(ConfigError, match=message):
            await receive_all(dataset, position=Beginning(mix_changes=changes))
        await dataset.aclose()

    @asynchronous
    async def test_weights_of_other_components(self, tmp_path: Path) -> None:
        dataset = await opened(tmp_path)
        changes = text_of([(2, {"web": 0.0, "books": 1.0})])
        with pytest.raises(ConfigError, match=r"names books, web from step 2 on; name every"):
            await receive_all(dataset, position=Beginning(mix_changes=changes))
        await dataset.aclose()

    @asynchronous
    async def test_ranks_whose_weights_changed_differently(self, tmp_path: Path) -> None:
        dataset = await opened(tmp_path)
        ranks = [await receive_all(dataset, rank=rank, world_size=2, most=1) for rank in range(2)]
        one, other = (position_after(batches[-1]) for batches in ranks)
        changed = other.with_changes(text_of([(5, {"web": 0.0, "code": 1.0})]))
        message = r'changes of the weights .*: \[\[5, {"code": 1.0, "web": 0.0}\]\], and not none'
        with pytest.raises(OtherOrder, match=message):
            Position.merge([one, changed], rank=0, world_size=1)
        await dataset.aclose()

    @asynchronous
    async def test_another_order_is_told_as_ever(self, tmp_path: Path) -> None:
        dataset = await opened(tmp_path / "one")
        state = position_after((await receive_all(dataset, most=1))[-1])
        changed = state.with_changes(text_of([(5, {"web": 0.0, "code": 1.0})]))
        other = await opened(tmp_path / "two", seed=3)
        with pytest.raises(OtherOrder, match="another order: seed was 0 and is 3; restore"):
            await receive_all(other, position=changed)
        assert replace(changed.fingerprint, mix_changes="") == dataset.fingerprint(6, 1)
        await dataset.aclose()
        await other.aclose()
