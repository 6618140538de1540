"""Loops that begin at the beginning: evaluation, of which each is to see all records."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import streamrec as sr
from streamrec.streams import handle
from tests.feeder.support import serving
from tests.pipeline.small_datasets import settings_of, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ALL = [1, 2, 3, 4, 5, 6]


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write(tmp_path / "raw", ((40,) * 7, (30,) * 5))


def steps(stream: sr.Stream, most: int = 99) -> list[int]:
    """Return the steps of a loop that is broken off behind so many batches."""
    taken: list[int] = []
    for batch in stream:
        taken.append(batch.next_position.step)
        if len(taken) == most:
            break
    return taken


def steps_async(stream: sr.Stream, most: int = 99) -> list[int]:
    async def take() -> list[int]:
        return [batch.next_position.step async for batch in sr.take(stream, most)]

    return asyncio.run(take())


@pytest.mark.parametrize("loop", [steps, steps_async])
def test_each_loop_begins_at_the_beginning(loop: Callable[..., list[int]], source: str) -> None:
    stream = sr.open(source, batch_size=2, restart=True, engine="thread")
    assert loop(stream, 2) == [1, 2]
    assert loop(stream, 4) == [1, 2, 3, 4]
    assert loop(stream) == ALL
    assert loop(stream, 1) == [7]  # the next epoch
    assert loop(stream) == [7, 8, 9, 10, 11, 12]
    stream.close()


def test_without_it_a_loop_goes_on(source: str) -> None:
    with sr.open(source, batch_size=2, engine="thread") as stream:
        assert (steps(stream, 2), steps(stream, 2)) == ([1, 2], [3, 4])
        stream.restart()
        stream.restart()
        assert steps(stream) == ALL
        assert steps(stream, 1) == [7]


def test_the_stream_of_a_feeder(source: str) -> None:
    with (
        serving(settings_of(source, batch_size=2)) as address,
        sr.connect(f"{address}/data", restart=True) as stream,
    ):
        assert (steps(stream, 3), steps(stream)) == ([1, 2, 3], ALL)


def test_single_records(source: str) -> None:
    with sr.open(source, restart=True, engine="thread") as stream:
        first = next(iter(stream))
        every = list(stream)
        assert (every[0], len(every)) == (first, 12)


def test_an_epoch_that_is_shuffled_comes_again_until_it_is_read(source: str) -> None:
    def records(stream: sr.Stream, most: int = 99) -> list[bytes]:
        return [record for batch in sr.take(stream, most) for record in batch.records]

    with sr.open(
        source, batch_size=2, restart=True, shuffle=True, seed=7, engine="thread"
    ) as stream:
        part, whole, another = records(stream, 2), records(stream), records(stream)
    assert part == whole[:4]
    assert sorted(whole) == sorted(another)
    assert whole != another


def test_a_place_that_was_gone_to_holds_for_one_loop(source: str) -> None:
    with sr.open(source, batch_size=2, restart=True, engine="thread") as stream:
        steps(stream, 3)
        state = stream.state_dict()
        stream.load_state_dict(state)
        assert steps(stream, 1) == [4]
        assert steps(stream, 1) == [1]
        stream.set_epoch(1)
        assert steps(stream, 1) == steps(stream, 1)
        assert stream.epoch == 1
        stream.load_state_dict(state)
        stream.close()
        assert steps(stream) == [4, 5, 6]
        assert steps(stream, 1) == [7]


def test_a_loop_that_was_interrupted_in_the_middle_of_a_call(source: str) -> None:
    """The mark to which the stream goes back is of the run before."""
    with sr.open(source, batch_size=2, restart=True, engine="thread") as stream:
        steps(stream, 6)
        mark = handle.of(stream).mark()
        assert next(stream, None) is None
        handle.of(stream).go_back(mark)
        assert steps(stream) == ALL
