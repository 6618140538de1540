"""Positions from elsewhere, of the future and of nobody: refused by what is wrong, or harmless."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import streamrec as sr
from streamrec.errors import (
    MalformedPosition,
    OtherDataset,
    OtherOrder,
    OtherVersion,
    StreamrecError,
)
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.order.coordinates import NAMES
from streamrec.plan.state.position import Position
from streamrec.plan.state.resume_point import read_resume_point
from tests.by_day import each_once, is_day
from tests.pipeline.lane.test_packing_stage import FEATURES
from tests.pipeline.lane.test_packing_stage import write as write_tokens
from tests.pipeline.small_datasets import identities, receive_all, settings_of, write, write_index
from tests.streams.test_stream_functions import TOKENS
from tests.streams.test_stream_state import MODES, Mode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHARDS = ((40,) * 13, (), (30,) * 8, (50,) * 5)
KINDS: dict[str, dict[str, Any]] = {
    "by shard": {},
    "by shard, shuffled": {"shuffle": True, "shuffle_window": 300},
    "by shard, counted": {"shuffle": True, "shuffle_window": 300, "steps_per_epoch": 9},
    "by record": {"index": True, "shuffle": True, "shuffle_window": 900},
    "by record, counted": {"index": True, "steps_per_epoch": 5},
    "single records": {"batch_size": None},
    "as it comes": {"ordered": False},
}
ORDER: dict[str, Any] = {"lanes": 4, "batch_size": 4, "epochs": 2}
HOSTILE = [0, 1, 2, 17, 50, 1 << 20, 1 << 40, 1 << 48, (1 << 63) - 1, 1 << 70, -1, 0.5, "1", None]
PACKED = [0, 1, 2, 17, 50, 1 << 20, 1 << 40, (1 << 48) - 1, 1 << 48]
MOST = 20


@pytest.fixture
def source(tmp_path: Path) -> str:
    source = write(tmp_path / "data", SHARDS)
    write_index(source, 200)
    return source


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Iterator[Mode]:
    with contextlib.ExitStack() as stack:
        yield Mode(request.param, stack)


# -- hostile ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_in_any_place_is_refused_or_read(source: str, kind: str) -> None:
    """Nothing but errors of the project, no run without an end, and states that can be saved."""

    async def main() -> None:
        dataset = await Dataset.open(settings_of(source, **{**ORDER, **KINDS[kind]}))
        some = await receive_all(dataset, most=2)
        state = json.loads(json.dumps(some[-1].next_position.to_dict()))
        for damaged in islice(damages(state), 0, None, 3 if is_day() else 1):
            with contextlib.suppress(StreamrecError):
                batches = await receive_all(dataset, position=read_resume_point(damaged), most=MOST)
                for batch in batches:
                    read_resume_point(json.loads(json.dumps(batch.next_position.to_dict())))
        await dataset.aclose()

    asyncio.run(main())


def damages(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Change one number."""
    for name, value in state.items():
        for hostile in HOSTILE:
            if isinstance(value, list) and value:
                yield {**state, name: [hostile, *value[1:]]}
            elif isinstance(value, int):
                yield {**state, name: hostile}
    position = Position.from_dict(state)
    for name in NAMES if len(position.lanes) else ():
        for number in PACKED:
            yield changed(position, name, number)


def changed(position: Position, name: str, number: int) -> dict[str, Any]:
    """A state in which one number of its first lane is another."""
    lanes = position.lanes.copy()
    lanes[name][0] = number
    return replace(position, lanes=lanes).to_dict()


def test_more_rows_than_the_window_has(source: str) -> None:
    """Records of the next window are not left out in silence."""
    values = {**ORDER, **KINDS["by shard, shuffled"]}
    with sr.open(source, engine="thread", **values) as stream:
        for _ in range(2):
            next(stream)
        state = stream.state_dict()
    stream.load_state_dict(changed(Position.from_dict(state), "row", 17))
    with pytest.raises(MalformedPosition, match="17 records of a window were delivered, but it "):
        list(stream)
    stream.close()


def test_a_lane_far_ahead_of_the_others_waits_for_them(source: str) -> None:
    values = {**ORDER, "epochs": 1}
    with sr.open(source, engine="thread", **values) as stream:
        next(stream)
        state = stream.state_dict()
    position = Position.from_dict(state)
    stream.load_state_dict(changed(position, "taken", position.lanes["taken"].item(0) + 5))
    rest = list(stream)
    assert len(identities(rest)) == sum(map(len, SHARDS)) - 4
    assert rest[-1].next_position.step == 1 + len(rest)
    stream.close()


# -- of something else, in every mode --------------------------------------------------------------


class TestByRecord:
    values: ClassVar[dict[str, Any]] = {"index": True, "shuffle_window": 900, "lanes": 4}

    def state(self, source: str) -> dict[str, Any]:
        with sr.open(source, engine="thread", batch_size=4, shuffle=True, **self.values) as stream:
            next(stream)
            return json.loads(json.dumps(stream.state_dict()))  # type: ignore[no-any-return]

    @pytest.mark.parametrize(
        ("other", "match"),
        [
            ({"seed": 5}, "seed was 0 and is 5"),
            ({"lanes": 2}, "lanes was 4 and is 2"),
            ({"batch_size": 5}, "global_batch was 4 and is 5"),
            ({"index": None}, "order was 'record, even windows:.*' and is 'shard'"),
        ],
    )
    def test_of_another_order(
        self, mode: Mode, source: str, other: dict[str, Any], match: str
    ) -> None:
        stream = mode.open(source, **{**self.values, **other})
        stream.load_state_dict(self.state(source))
        with pytest.raises(OtherOrder, match=match):
            mode.enter(stream)

    def test_of_another_index(self, mode: Mode, source: str) -> None:
        state = self.state(source)
        write_index(source, 90)
        stream = mode.open(source, **self.values)
        stream.load_state_dict(state)
        with pytest.raises(OtherOrder, match=r"order was 'record, .*' and is 'record, "):
            mode.enter(stream)

    def test_of_other_shards(self, mode: Mode, source: str, tmp_path: Path) -> None:
        other = write(tmp_path / "other", ((3,) * 4,) * 5)
        write_index(other, 200)
        stream = mode.open(other, **self.values)
        stream.load_state_dict(self.state(source))
        with pytest.raises(OtherDataset, match="4 shards other than the 5"):
            mode.enter(stream)

    def test_of_the_future(self, mode: Mode, source: str) -> None:
        stream = mode.open(source, **self.values)
        with pytest.raises(OtherVersion, match=r"version 4, .* reads version 3; upgrade"):
            stream.load_state_dict({**self.state(source), "version": 4})

    @pytest.mark.parametrize(
        ("damage", "match"),
        [
            ({"step": 1 << 40}, "step 1099511627776 is farther than any stream comes"),
            ({"since": [0, 7]}, "'since' is behind its 'run_epoch' or its 'step'"),
        ],
    )
    def test_of_nobody(self, mode: Mode, source: str, damage: dict[str, Any], match: str) -> None:
        stream = mode.open(source, **self.values)
        with pytest.raises(MalformedPosition, match=match):
            stream.load_state_dict({**self.state(source), **damage})
            mode.take(stream, 1)


OWN = "tests.pipeline.user_functions"
STAGES = {
    "filter": (f"{OWN}:has_even_number", f"filter {OWN}:has_even_number"),
    "map": (f"{OWN}:add_doubles", f"map {OWN}:add_doubles"),
    "pack": ({"length": 8, "bins": 2}, "Pack"),
}


@pytest.mark.parametrize(("mode", "stage"), each_once(MODES, list(STAGES)), indirect=["mode"])
def test_of_other_stages(mode: Mode, tmp_path: Path, stage: str) -> None:
    """The refusal names the stage that only the position or only the stream has."""
    value, words = STAGES[stage]
    source = write_tokens(tmp_path, ((3, 2, 5, 1, 4, 2),) * 4)
    features = FEATURES if mode.name.startswith("feeder") else TOKENS
    values: dict[str, Any] = {"features": features, "batch_size": 1}
    (with_it,) = mode.take(mode.open(source, **values, **{stage: value}), 1)
    (without,) = mode.take(mode.open(source, **values), 1)
    stream = mode.open(source, **values)
    stream.load_state_dict(with_it.next_position.to_dict())
    with pytest.raises(OtherOrder, match=f"stages was ['\"]{words}.*['\"] and is ''"):
        mode.enter(stream)
    stream = mode.open(source, **values, **{stage: value})
    stream.load_state_dict(without.next_position.to_dict())
    with pytest.raises(OtherOrder, match=f"stages was '' and is ['\"]{words}"):
        mode.enter(stream)
