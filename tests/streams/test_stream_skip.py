"""``skip`` and ``askip`` of a stream: it goes on as if the steps had been taken and dropped."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.errors import ConfigError
from tests.by_day import each_once, stops
from tests.feeder.support import serving
from tests.pipeline.small_datasets import identities, settings_of, write, write_index

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streamrec.streams.stream import Stream

ORDER: dict[str, Any] = {
    "lanes": 8,
    "shuffle": True,
    "shuffle_window": 300,
    "batch_size": 2,
    "memory_budget": "32MiB",
    "epochs": 2,
}
ORDERS: dict[str, dict[str, Any]] = {
    "by record": {"index": True},
    "by shard": {"steps_per_epoch": 4},
    "kept": {
        "index": True,
        "filter": "tests.pipeline.user_functions:is_short",
        "steps_per_epoch": 4,
    },
    "single": {"index": True, "batch_size": None},
    "single by shard": {"batch_size": None, "steps_per_epoch": 6},
}


@pytest.fixture
def source(tmp_path: Path) -> str:
    source = write(tmp_path, ((5,) * 23, (5,) * 12, (), (5,) * 14, *((5,) * 7,) * 5))
    write_index(source, 50)
    return source


def opened(source: str, **values: Any) -> Stream:
    return sr.open(source, **{"engine": "thread", **ORDER, **values})


def items(found: list[Any]) -> list[Any]:
    return found if not found or isinstance(found[0], bytes) else identities(found)


def state(stream: Stream) -> Any:
    """Return the state, or the step of single records: their states tell which came together."""
    state = stream.state_dict()
    return state if state["fingerprint"]["global_batch"] else state["step"]


def rest(stream: Stream) -> tuple[list[Any], list[Any], Any]:
    """Return what two more loops give, and where the stream stands then."""
    return items(list(stream)), items(list(stream)), state(stream)


@pytest.mark.parametrize(("order", "world_size"), each_once(list(ORDERS), [1, 2, 4, 8]), ids=str)
def test_it_goes_on_as_if_they_had_been_dropped(source: str, order: str, world_size: int) -> None:
    values = {**ORDERS[order], "rank": world_size - 1, "world_size": world_size}
    with opened(source, **values) as stream:
        whole = len(list(stream))
    for steps in stops([0, *range(1, whole - 1), whole - 1, whole]):
        with opened(source, **values) as taken, opened(source, **values) as skipped:
            next(iter(taken))
            skipped.load_state_dict(taken.state_dict())
            for _ in sr.take(taken, steps):
                pass
            skipped.skip(steps)
            assert state(skipped) == state(taken)
            assert rest(skipped) == rest(taken)


@pytest.fixture(params=["thread", "process", "feeder"])
def reading(source: str, request: pytest.FixtureRequest) -> Iterator[Stream]:
    with ExitStack() as stack:
        if request.param == "feeder":
            address = stack.enter_context(serving(settings_of(source, index=True, **ORDER)))
            yield stack.enter_context(sr.connect(f"{address}/data"))
        else:
            yield stack.enter_context(opened(source, index=True, engine=request.param))


def test_every_engine_and_a_feeder_skip(reading: Stream) -> None:
    whole = list(reading)
    reading.rewind()
    head = [next(reading) for _ in range(3)]
    reading.skip(4)
    assert json.loads(json.dumps(reading.state_dict())) == whole[6].next_position.to_dict()
    assert identities(head + list(reading)) == identities(whole[:3] + whole[7:])


def test_what_is_skipped_is_not_counted_as_taken(reading: Stream) -> None:
    reading.skip(4)
    counts = reading.statistics()
    assert (counts["step"], counts["batches"], counts["records"]) == (4, 0, 0)


def test_by_record_nothing_is_read(source: str) -> None:
    stream = opened(source, index=True)
    stream.skip(4)
    assert "closed" in repr(stream)
    assert stream.state_dict()["step"] == 4


@pytest.mark.parametrize("order", ["by record", "by shard"])
def test_in_asyncio(source: str, order: str) -> None:
    async def main() -> None:
        async with opened(source, **ORDERS[order]) as stream:
            whole = [batch async for batch in stream]
            stream.rewind()
            await anext(stream)
            await stream.askip(5)
            assert stream.state_dict() == whole[5].next_position.to_dict()
            assert identities([batch async for batch in stream]) == identities(whole[6:])

    asyncio.run(main())


@pytest.mark.parametrize("order", ["by record", "by shard"])
def test_a_loop_that_restarts_goes_on_after_what_was_skipped(source: str, order: str) -> None:
    with opened(source, restart=True, **ORDERS[order]) as stream:
        whole = identities(list(stream))
        stream.rewind()
        list(sr.take(stream, 2))
        stream.skip(3)
        assert identities(list(sr.take(stream, 1))) == whole[10:12]
        assert identities(list(sr.take(stream, 1))) == whole[:2]


@pytest.mark.parametrize("order", ["by record", "by shard", "single"])
def test_a_loop_ends_with_the_run_whose_rest_is_skipped(source: str, order: str) -> None:
    with opened(source, **ORDERS[order]) as stream:
        whole = len(list(stream))
        stream.rewind()
        for given, _ in enumerate(stream):
            assert not given
            stream.skip(whole)
        assert next(stream, None) is None
        assert len(list(stream)) == whole


def test_a_loop_in_asyncio_ends_with_the_run_whose_rest_is_skipped(source: str) -> None:
    async def main() -> None:
        async with opened(source, index=True) as stream:
            given = 0
            async for _ in stream:
                given += 1
                assert given == 1
                await stream.askip(1000)

    asyncio.run(main())


def test_less_than_none(source: str) -> None:
    with pytest.raises(ConfigError, match="steps is -1; give a number from 0 up"):
        opened(source).skip(-1)
