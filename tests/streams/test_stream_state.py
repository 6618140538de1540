"""Going to and fro in a stream: the same in every mode, a feeder included."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.config import DatasetSettings
from streamrec.errors import ConfigError, MalformedPosition, OtherDataset, OtherOrder, OtherVersion
from tests.by_day import each_once
from tests.feeder.support import serving
from tests.pipeline.small_datasets import identities, settings_of, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streamrec.streams.stream import Stream

SHARDS = ((40,) * 13, (), (30,) * 8, (500,) * 5)
ORDER: dict[str, Any] = {"batch_size": 4, "shuffle": True, "shuffle_window": 300, "lanes": 4}
TOTAL = 26
STEPS = 7  # an epoch


MODES = ["process", "thread", "loop", "feeder", "feeder, loop"]


class Mode:
    """One way to read a dataset: as sr.open or sr.connect opens it, and how batches are taken."""

    def __init__(self, name: str, stack: contextlib.ExitStack) -> None:
        self.name = name
        self.asynchronous = name in ("loop", "feeder, loop")
        self._stack = stack

    def open(self, source: str, **settings: Any) -> Stream:
        settings = {**ORDER, **settings}
        if not self.name.startswith("feeder"):
            engine: dict[str, Any] = {"engine": self.name} if self.name != "loop" else {}
            return self._closing(sr.open(source, **engine, **settings))
        place = {name: settings.pop(name) for name in ("rank", "world_size") if name in settings}
        address = self._stack.enter_context(serving(settings_of(source, **settings)))
        return self._closing(
            sr.connect(f"{address}/data", **(place or {"rank": 0, "world_size": 1}))
        )

    def _closing(self, stream: Stream) -> Stream:
        if not self.asynchronous:
            self._stack.callback(stream.close)
        return stream

    def take(self, stream: Stream, most: int = 1000) -> list[Any]:
        """Return the next of a run; in asyncio every call has a loop and an opening of its own."""
        return (
            asyncio.run(_take(stream, most)) if self.asynchronous else list(sr.take(stream, most))
        )

    def enter(self, stream: Stream) -> None:
        """Open it, and no more."""
        if self.asynchronous:
            asyncio.run(_enter(stream))
        else:
            with stream:
                pass


async def _take(stream: Stream, most: int) -> list[Any]:
    async with stream:
        return [batch async for batch in sr.take(stream, most)]


async def _enter(stream: Stream) -> None:
    async with stream:
        pass


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Iterator[Mode]:
    with contextlib.ExitStack() as stack:
        yield Mode(request.param, stack)


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write(tmp_path / "raw", SHARDS)


@pytest.fixture
def epochs(source: str) -> list[list[Any]]:
    """Return the batches of the first three epochs, read in the plainest way."""
    stream = sr.open(source, **ORDER)
    return [asyncio.run(_take(stream, 1000)) for _ in range(3)]


def same(left: list[Any], right: list[Any]) -> bool:
    """Return whether both have the same records, epochs and batches."""
    return [(b.epoch, identities([b])) for b in left] == [(b.epoch, identities([b])) for b in right]


class TestGoingToAndFro:
    def test_rewind(self, mode: Mode, source: str, epochs: list[list[Any]]) -> None:
        stream = mode.open(source)
        mode.take(stream, 3)
        stream.rewind()
        assert stream.state_dict() == {"version": 3, "step": 0}
        assert same(mode.take(stream), epochs[0])
        stream.rewind()
        assert same(mode.take(stream), epochs[0])

    def test_set_epoch(self, mode: Mode, source: str, epochs: list[list[Any]]) -> None:
        stream = mode.open(source)
        stream.set_epoch(2)
        assert stream.epoch == 2
        assert stream.state_dict() == {"version": 3, "step": 0, "epoch": 2}
        assert same(mode.take(stream, 2), epochs[2][:2])
        stream.set_epoch(1)
        assert same(mode.take(stream), epochs[1])
        assert same(mode.take(stream), epochs[2])

    def test_a_loop_that_sets_each_epoch(
        self, mode: Mode, source: str, epochs: list[list[Any]]
    ) -> None:
        stream = mode.open(source)
        for epoch in range(2):
            stream.set_epoch(epoch)
            assert same(mode.take(stream), epochs[epoch])
        assert stream.state_dict()["step"] == 2 * STEPS

    @pytest.mark.parametrize(("mode", "taken"), each_once(MODES, [1, 4, STEPS]), indirect=["mode"])
    def test_a_resumed_loop_repeats_nothing(
        self, mode: Mode, source: str, epochs: list[list[Any]], taken: int
    ) -> None:
        """The state may stand anywhere in the epoch that the loop sets, at its end too."""
        stream = mode.open(source)
        stream.load_state_dict(epochs[1][taken - 1].next_position.to_dict())
        stream.set_epoch(1)
        assert same(mode.take(stream), epochs[1][taken:])
        stream.set_epoch(2)
        assert same(mode.take(stream), epochs[2])

    def test_a_state_for_an_open_stream(
        self, mode: Mode, source: str, epochs: list[list[Any]]
    ) -> None:
        stream = mode.open(source)
        first = mode.take(stream, 3)
        mode.take(stream, 2)
        stream.load_state_dict(first[-1].next_position.to_dict())
        assert same(mode.take(stream), epochs[0][3:])

    def test_take(self, mode: Mode, source: str, epochs: list[list[Any]]) -> None:
        stream = mode.open(source)
        assert mode.take(stream, 0) == []
        parts = [mode.take(stream, most) for most in (2, 1, 3, 100)]
        assert [len(part) for part in parts] == [2, 1, 3, 1]
        assert same([batch for part in parts for batch in part], epochs[0])
        assert mode.take(stream, 0) == []
        assert stream.state_dict()["run_epoch"] == 1
        assert same(mode.take(stream, 2), epochs[1][:2])

    def test_state_after_each_batch(self, mode: Mode, source: str, epochs: list[list[Any]]) -> None:
        stream = mode.open(source)
        for expected in epochs[0][:3]:
            (batch,) = mode.take(stream, 1)
            state = json.loads(json.dumps(stream.state_dict()))
            assert state == batch.next_position.to_dict() == expected.next_position.to_dict()

    def test_the_very_end(self, mode: Mode, source: str, epochs: list[list[Any]]) -> None:
        """After the last batch the loop ends at once; after that end the next epoch comes."""
        stream = mode.open(source)
        mode.take(stream, STEPS)
        last = stream.state_dict()
        assert mode.take(stream, 1) == []
        behind = stream.state_dict()
        assert (last["step"], behind["step"]) == (STEPS, STEPS)
        assert (last["run_epoch"], behind["run_epoch"]) == (0, 1)
        stream.load_state_dict(last)
        assert mode.take(stream) == []
        assert same(mode.take(stream), epochs[1])
        stream.load_state_dict(behind)
        assert same(mode.take(stream), epochs[1])

    def test_steps_are_counted_from_the_epoch(self, mode: Mode, source: str) -> None:
        stream = mode.open(source, steps_per_epoch=5)
        stream.set_epoch(3)
        batches = mode.take(stream)
        assert [batch.next_position.step for batch in batches] == [16, 17, 18, 19, 20]
        assert batches[0].epoch == 3
        stream.set_epoch(4)
        assert [batch.next_position.step for batch in mode.take(stream)] == [21, 22, 23, 24, 25]


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"seed": 5}, "seed was 0 and is 5"),
    ({"lanes": 2}, "lanes was 4 and is 2"),
    ({"shuffle_window": 400}, "shuffle_window was 300 and is 400"),
    ({"shuffle": False}, "shuffle was True and is False"),
    ({"batch_size": 5}, "global_batch was 4 and is 5"),
]
IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"world_size": 3, "rank": 0}, "world_size 3 does not divide the 4 lanes"),
    ({"world_size": 2, "rank": 0}, "set steps_per_epoch"),
    ({"world_size": 2, "rank": 0, "epochs": None, "remainder": "keep"}, 'choose "drop"'),
    ({"shuffle_window": "64MiB", "memory_budget": "32MiB"}, "is too small"),
]


class TestRefusedAtOpen:
    """Before any batch, by whoever reads."""

    def refused(self, mode: Mode, stream: Stream, error: type[Exception], match: str) -> None:
        with pytest.raises(error, match=match):
            mode.enter(stream)

    @pytest.mark.parametrize(("mode", "case"), each_once(MODES, OTHERS), indirect=["mode"])
    def test_a_state_of_another_order(
        self, mode: Mode, source: str, epochs: list[list[Any]], case: tuple[dict[str, Any], str]
    ) -> None:
        values, match = case
        stream = mode.open(source, **values)
        stream.load_state_dict(epochs[0][1].next_position.to_dict())
        self.refused(mode, stream, OtherOrder, match)

    def test_a_state_of_other_shards(
        self, mode: Mode, tmp_path: Path, epochs: list[list[Any]]
    ) -> None:
        stream = mode.open(write(tmp_path / "other", ((3,) * 4,) * 5))
        stream.load_state_dict(epochs[0][1].next_position.to_dict())
        self.refused(mode, stream, OtherDataset, "4 shards other than the 5")

    @pytest.mark.parametrize(("mode", "case"), each_once(MODES, IMPOSSIBLE), indirect=["mode"])
    def test_a_world_that_cannot_be(
        self, mode: Mode, source: str, case: tuple[dict[str, Any], str]
    ) -> None:
        values, match = case
        self.refused(mode, mode.open(source, **values), ConfigError, match)

    def test_the_state_of_one_rank_of_several(self, mode: Mode, source: str) -> None:
        half = {"epochs": None, "batch_size": 2, "world_size": 2, "rank": 1}
        (batch,) = mode.take(mode.open(source, **half), 1)
        stream = mode.open(source, epochs=None)
        stream.load_state_dict(batch.next_position.to_dict())
        self.refused(mode, stream, MalformedPosition, "the ranks 1 of 2; give one of every rank")

    def test_a_refused_stream_can_be_set_right(
        self, mode: Mode, source: str, epochs: list[list[Any]]
    ) -> None:
        stream = mode.open(source, seed=5)
        stream.load_state_dict(epochs[0][1].next_position.to_dict())
        self.refused(mode, stream, OtherOrder, "seed")
        stream.rewind()
        assert len(identities(mode.take(stream))) == TOTAL


class TestRefusedAtOnce:
    @pytest.mark.parametrize(
        "state",
        [
            [], "state", 7, None, [None], {"version": 3, "step": -3}, {"nonsense": 1}, [{}],
            {"version": 3, "epoch": -1}, {"version": 3, "epoch": 1 << 40},
            {"version": 3, "epoch": True}, {"version": True}, {"version": -1},
        ],
    )  # fmt: skip
    def test_nonsense(self, source: str, state: Any) -> None:
        with pytest.raises(MalformedPosition):
            sr.open(source).load_state_dict(state)

    @pytest.mark.parametrize(
        ("state", "what"),
        [(b"{}", "a bytes"), (bytearray(b"{}"), "a bytearray"), ("{}", "a str"), (None, "a None")],
    )
    def test_the_error_names_what_was_given(self, source: str, state: Any, what: str) -> None:
        with pytest.raises(MalformedPosition, match=rf"^{what}\w* is not a state.*json.loads"):
            sr.open(source).load_state_dict(state)

    def test_any_mapping_is_read(self, source: str, epochs: list[list[Any]]) -> None:
        state = epochs[0][0].next_position.to_dict()
        frozen = MappingProxyType({**state, "fingerprint": MappingProxyType(state["fingerprint"])})
        stream = sr.open(source, **ORDER)
        stream.load_state_dict(frozen)
        assert stream.state_dict() == state

    def test_numbers_of_numpy(self, source: str) -> None:
        stream = sr.open(source, **ORDER)
        stream.set_epoch(np.int64(2))  # type: ignore[arg-type]
        assert stream.epoch == 2
        stream.seek(step=np.int32(3))  # type: ignore[arg-type]
        assert stream.state_dict() == {"version": 3, "step": 3}

    @pytest.mark.parametrize("state", [{"version": 4}, {"version": 7, "epoch": "?", "new": []}])
    def test_a_later_version(self, source: str, state: Any) -> None:
        with pytest.raises(OtherVersion, match="upgrade"):
            sr.open(source).load_state_dict(state)

    def test_a_refusal_changes_nothing(self, source: str, epochs: list[list[Any]]) -> None:
        stream = sr.open(source, **ORDER)
        state = epochs[0][1].next_position.to_dict()
        stream.load_state_dict(state)
        wrong: Any
        for wrong in ({}, [state, {}]):
            with pytest.raises(MalformedPosition):
                stream.load_state_dict(wrong)
        with pytest.raises(MalformedPosition, match="epoch -2"):
            stream.set_epoch(-2)
        with pytest.raises(ConfigError, match="count is -1"):
            sr.take(stream, -1)
        assert stream.state_dict() == state

    def test_states_of_different_kinds(self, source: str, epochs: list[list[Any]]) -> None:
        stream = sr.open(source, **ORDER)
        stream.load_state_dict([{"version": 3}, epochs[0][0].next_position.to_dict()])
        with pytest.raises(MalformedPosition, match="beginning of an epoch and others do not"):
            stream.state_dict()


@pytest.mark.parametrize("epoch", [0, 3])
def test_the_beginnings_of_all_ranks_serve_any_rank(source: str, epoch: int) -> None:
    stream = sr.open(source, **ORDER)
    stream.set_epoch(epoch)
    again = sr.open(source, **ORDER)
    again.load_state_dict([stream.state_dict()] * 4)
    assert again.state_dict() == stream.state_dict()
    assert pickle.loads(pickle.dumps(again)).epoch == epoch


def test_moving_an_open_stream_ends_what_read_for_it(source: str) -> None:
    with sr.open(source, engine="thread", **ORDER) as stream:
        next(stream)
        first = stream._session
        stream.rewind()
        assert stream._session is first, "until it is read from"
        next(stream)
        assert stream._session is not first
    assert stream._session is None


def test_a_stream_of_single_records_goes_to_and_fro(mode: Mode, source: str) -> None:
    whole = mode.take(mode.open(source, batch_size=None))
    stream = mode.open(source, batch_size=None)
    assert mode.take(stream, 5) == whole[:5]
    state = stream.state_dict()
    stream.rewind()
    assert mode.take(stream, 3) == whole[:3]
    stream.load_state_dict(state)
    assert stream.state_dict() == state
    assert mode.take(stream) == whole[5:]


def test_settings_of_a_feeder_are_its_own() -> None:
    """The settings that the modes share are also those of a daemon's dataset."""
    assert set(ORDER) <= set(DatasetSettings.model_fields)


class TestWhatAFeederMustServe:
    """``connect(fingerprint=)``: refused at open, by what differs."""

    @pytest.fixture
    def fingerprint(self, source: str) -> Any:
        with sr.open(source, engine="thread", **ORDER) as stream:
            return stream.fingerprint

    def test_the_same(self, source: str, fingerprint: Any) -> None:
        with serving(settings_of(source, **ORDER)) as address:
            place = {"rank": 0, "world_size": 1, "fingerprint": fingerprint}
            with sr.connect(f"{address}/data", **place) as stream:
                assert stream.fingerprint == fingerprint

    @pytest.mark.parametrize(
        ("values", "match"),
        [
            ({"seed": 3}, "the expected fingerprint belongs to another order: seed was 0 and is 3"),
            ({"lanes": 2}, "lanes was 4 and is 2"),
            ({"batch_size": 8}, "global_batch was 4 and is 8"),
        ],
    )
    def test_another_order(
        self, source: str, fingerprint: Any, values: dict[str, Any], match: str
    ) -> None:
        with serving(settings_of(source, **{**ORDER, **values})) as address:
            place = {"rank": 0, "world_size": 1, "fingerprint": fingerprint}
            with pytest.raises(OtherOrder, match=match):
                sr.connect(f"{address}/data", **place).__enter__()

    def test_other_shards(self, tmp_path: Path, fingerprint: Any) -> None:
        other = write(tmp_path / "other", ((3,) * 4,) * 5)
        with serving(settings_of(other, **ORDER)) as address:
            place = {"rank": 0, "world_size": 1, "fingerprint": fingerprint}
            with pytest.raises(OtherDataset, match="the expected fingerprint belongs to 4 shards"):
                sr.connect(f"{address}/data", **place).__enter__()
