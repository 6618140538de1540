"""Batches that are looked at ahead: they come again, and no state moves."""

from __future__ import annotations

import itertools
import pickle
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.errors import Busy, TruncatedShard
from tests.by_day import each_once
from tests.interrupts import Interrupted, interrupted_at
from tests.pipeline.small_datasets import identities, write

if TYPE_CHECKING:
    from pathlib import Path


SHARDS = ((40,) * 9, (30,) * 8)


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write(tmp_path, SHARDS)


def opened(source: str, **settings: Any) -> sr.Stream:
    settings = {"batch_size": 3, "lanes": 2, "engine": "thread", "epochs": 2, **settings}
    return sr.open(source, shuffle=True, shuffle_window=200, **settings)


@pytest.mark.parametrize(("count", "engine"), each_once([1, 2, 5, 100], ["thread", "process"]))
def test_they_come_again_and_no_state_moves(source: str, engine: str, count: int) -> None:
    whole, seen = list(opened(source)), []
    with opened(source, engine=engine) as stream:
        for k in range(len(whole)):
            before = stream.state_dict()
            ahead = stream.peek(count)
            assert stream.state_dict() == before
            assert identities(ahead) == identities(whole[k : k + count])
            seen.append(next(stream))
            assert seen[-1] is ahead[0]
        assert stream.peek() == []
        with pytest.raises(StopIteration):
            next(stream)
        assert stream.peek() == []
        iter(stream)
        assert stream.peek()[0].epoch == 2
        assert stream.statistics()["batches"] == len(whole)


def test_none_are_asked_for(source: str) -> None:
    assert opened(source).peek(0) == []


@pytest.mark.parametrize("how", ["load", "rewind", "close", "pickle", "epoch"])
def test_a_stream_that_is_moved_forgets_them(source: str, how: str) -> None:
    whole = identities(list(opened(source)))
    stream = opened(source)
    next(stream)
    first = stream.state_dict()
    next(stream)
    assert len(stream.peek(2)) == 2
    rest = whole[6:]
    if how == "load":
        stream.load_state_dict(first)
        rest = whole[3:]
    elif how == "rewind":
        stream.rewind()
        rest = whole
    elif how == "close":
        stream.close()
    elif how == "epoch":
        other = opened(source)
        for one in (stream, other):
            one.set_epoch(1)
        rest = identities(list(other))
    else:
        stream = pickle.loads(pickle.dumps(stream))
    assert identities(list(stream)) == rest


def test_single_records_travel_in_batches(source: str) -> None:
    records = list(opened(source, batch_size=None))
    stream = opened(source, batch_size=None)
    ahead = [record for batch in stream.peek(2) for record in batch.records.to_list()]
    assert ahead == records[: len(ahead)]
    assert list(stream) == records


def test_an_error_waits_for_its_turn(source: str, tmp_path: Path) -> None:
    shard = tmp_path / "part-00001.tfrecord"
    shard.write_bytes(shard.read_bytes()[:-3])
    stream = sr.open(source, batch_size=3, lanes=1, engine="thread")
    ahead = stream.peek(100)
    assert len(ahead) == 5
    assert len(stream.peek(100)) == 5
    assert [next(stream) for _ in ahead] == ahead
    assert stream.peek() == []
    with pytest.raises(TruncatedShard):
        next(stream)


def test_one_at_a_time(source: str) -> None:
    stream = opened(source)
    with stream._turn, pytest.raises(Busy):
        stream.peek()


# An interrupt between the making of a coroutine and its hand-over to a loop: nothing has begun.
@pytest.mark.filterwarnings("ignore:.*never awaited")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_loses_nothing(source: str) -> None:
    whole = identities(list(opened(source)))
    for step in itertools.count(0, 3):
        stream, interrupted = opened(source), False
        seen = [next(stream)]
        before = stream.state_dict()
        try:
            with interrupted_at(step):
                stream.peek(2)
        except Interrupted:
            interrupted = True
        assert stream.state_dict() == before
        assert identities([*seen, *stream]) == whole, step
        if not interrupted:
            break
    assert step > 30
