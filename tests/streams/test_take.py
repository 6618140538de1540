from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.errors import ConfigError
from streamrec.streams.take import take
from tests.pipeline.small_datasets import write

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.streams.stream import Stream


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return sr.open(write(tmp_path, ((20,) * 5,)), batch_size=1, engine="thread")


def steps(batches: list[Any]) -> list[int]:
    return [batch.next_position.step for batch in batches]


def test_so_many_and_none_behind_them(stream: Stream) -> None:
    with stream:
        assert steps(list(take(stream, 2))) == [1, 2]
        assert stream.state_dict()["step"] == 2
        assert steps(list(stream)) == [3, 4, 5]


def test_each_loop_takes_as_many_again(stream: Stream) -> None:
    two = take(stream, 2)
    with stream:
        assert [steps(list(two)) for _ in range(3)] == [[1, 2], [3, 4], [5]]
        assert steps(list(two)) == [6, 7], "of the next run"


def test_none_starts_nothing(stream: Stream) -> None:
    assert list(take(stream, 0)) == []
    assert "closed" in repr(stream)
    with stream:
        list(stream)
        list(take(stream, 0))
        assert "ended" in repr(stream)


def test_in_asyncio(stream: Stream) -> None:
    async def main() -> list[list[int]]:
        async with stream:
            return [steps([batch async for batch in take(stream, count)]) for count in (0, 2, 9, 1)]

    assert asyncio.run(main()) == [[], [1, 2], [3, 4, 5], [6]]


def test_a_loop_may_leave_early(stream: Stream) -> None:
    with stream:
        for _ in take(stream, 4):
            break
        assert stream.state_dict()["step"] == 1


def test_less_than_none(stream: Stream) -> None:
    with pytest.raises(ConfigError, match="count is -2; give a number"):
        take(stream, -2)


def test_says_what_it_takes(stream: Stream) -> None:
    assert repr(take(stream, 3)).startswith("<the next 3 of <Stream of ")
