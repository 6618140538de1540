"""``len``, ``seek`` and states of streams in the order by record, whoever reads for them."""

from __future__ import annotations

import asyncio
import itertools
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.errors import ConfigError, MalformedPosition
from streamrec.formats.shards.tfrecord import frame
from tests.by_day import each_once, stops
from tests.feeder.support import serving
from tests.pipeline.damaged_index import Damaged
from tests.pipeline.small_datasets import identities, settings_of, write, write_index

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streamrec.streams.stream import Stream

SHARDS = ((5,) * 17, (), (5,) * 4, (5,) * 9)
RECORDS = 30
ORDER: dict[str, Any] = {
    "lanes": 4,
    "shuffle": True,
    "shuffle_window": 300,
    "batch_size": 4,
    "memory_budget": "32MiB",
    "max_concurrency": 8,
    "index": True,
}


@pytest.fixture
def source(tmp_path: Path) -> str:
    source = write(tmp_path, SHARDS)
    write_index(source, 50)
    return source


def opened(source: str, **values: Any) -> Stream:
    return sr.open(source, **{"engine": "thread", **ORDER, **values})


@pytest.mark.parametrize(
    ("values", "length"),
    [
        ({}, 8),
        ({"remainder": "drop"}, 7),
        ({"remainder": "pad"}, 8),
        ({"epochs": 3}, 23),
        ({"batch_size": None}, 30),
        ({"steps_per_epoch": 5, "epochs": 2}, 10),
        ({"rank": 1, "world_size": 2}, 3),
        ({"rank": 1, "world_size": 2, "remainder": "pad"}, 4),
        ({"rank": 3, "world_size": 4, "batch_size": None}, 7),
    ],
)
def test_the_length_is_that_of_a_run(source: str, values: dict[str, Any], length: int) -> None:
    assert len(opened(source, **values)) == length, "before it is open"
    with opened(source, **values) as stream:
        assert len(stream) == length
        assert len(list(stream)) == length
        assert len(list(stream)) == length


EQUAL: list[tuple[dict[str, Any], int | None]] = [
    ({}, 0),
    ({"remainder": "drop"}, -2),
    ({"remainder": "pad"}, 2),
    ({"remainder": "drop", "epochs": 3}, -2),
    ({"rank": 1, "world_size": 2}, -6),
    ({"rank": 1, "world_size": 2, "remainder": "pad"}, 2),
    ({"rank": 3, "world_size": 4, "batch_size": None}, -2),
    ({"steps_per_epoch": 5}, None),
    ({"epochs": None}, None),
    ({"index": None}, None),
]
"""Settings, and how many records more than there are each gives."""


@pytest.mark.parametrize(("case", "engine"), each_once(EQUAL, ["thread", "process"]))
def test_what_equal_batches_cost(
    source: str, engine: str, case: tuple[dict[str, Any], int | None]
) -> None:
    values, surplus = case
    stream = opened(source, engine=engine, **values)
    assert stream.surplus is None
    with stream:
        assert stream.surplus == surplus


def test_the_masked_rows_and_the_records_left_out_are_as_many(source: str) -> None:
    for ends, world_size in itertools.product(["drop", "pad"], [1, 2, 4]):
        delivered = masked = surplus = 0
        for rank in range(world_size):
            values = {"rank": rank, "world_size": world_size, "remainder": ends, "batch_size": 3}
            with opened(source, **values) as stream:
                for batch in stream:
                    there = len(batch) if batch.mask is None else int(batch.mask.sum())
                    delivered += there
                    masked += len(batch) - there
                assert stream.surplus is not None
                surplus = stream.surplus
        assert masked == max(0, surplus)
        assert RECORDS - delivered == max(0, -surplus)


def test_the_refusal_says_what_each_way_costs_here(source: str) -> None:
    words = r'of a run.s 30 records "drop" leaves out 6, "pad" adds 2 masked'
    stream = opened(source, world_size=2, rank=0, remainder="keep")
    with pytest.raises(ConfigError, match=words), stream:
        pass


def test_the_refusal_without_an_index_says_what_one_would_cost(source: str) -> None:
    words = "less than a record of each of the 4 lanes"
    stream = opened(source, index=None, world_size=2, rank=0)
    with pytest.raises(ConfigError, match=words), stream:
        pass


def test_too_many_lanes_are_told_how_many_serve(source: str) -> None:
    stream = opened(source, lanes=31, remainder="pad")
    with pytest.raises(ConfigError, match=r"31 lanes share 30 records.*; set lanes to 30 at most"):
        stream.__enter__()


@pytest.mark.parametrize("values", [{"epochs": None}, {"index": None}])
def test_an_unknown_length_says_so(source: str, values: dict[str, Any]) -> None:
    stream = opened(source, **values)
    with pytest.raises(TypeError, match="not known"):
        len(stream)
    with stream:
        with pytest.raises(TypeError, match="not known"):
            len(stream)
        assert stream
    assert len(list(opened(source))) == 8


def test_a_feeder_tells_the_length_once_the_stream_is_open() -> None:
    with pytest.raises(TypeError, match="knows its length once it is open"):
        len(sr.connect("tcp://127.0.0.1:1/train", rank=0, world_size=1))


@pytest.mark.parametrize("engine", ["thread", "process", "feeder"])
def test_seek_is_running_there(source: str, engine: str) -> None:
    whole = []
    with opened(source) as stream:
        for _ in range(3):
            whole += list(stream)
    assert len(whole) == 24
    with _reading(source, engine) as stream:
        assert len(stream) == 8
        for step in stops((0, 1, 7, 8, 13, 23), every=2):
            stream.seek(step=step)
            tail = list(stream)
            assert identities(tail) == identities(whole[step : (step // 8 + 1) * 8])
            assert tail[0].next_position == whole[step].next_position
            assert {batch.epoch for batch in tail} == {step // 8}


@contextmanager
def _reading(source: str, engine: str, **values: Any) -> Iterator[Stream]:
    if engine == "feeder":
        with serving(settings_of(source, **ORDER, **values)) as address:
            with sr.connect(f"{address}/data") as stream:
                yield stream
    else:
        with opened(source, engine=engine, **values) as stream:
            yield stream


@pytest.mark.parametrize("engine", ["thread", "process", "feeder"])
def test_damage_changes_no_length_and_no_step(tmp_path: Path, engine: str) -> None:
    shard = tuple(bytes([i]) * 5 for i in range(RECORDS))
    frames = bytearray(b"".join(map(frame, shard)))
    frames[21 * 4 + 13] ^= 1
    frames[21 * 9 : 21 * 12 + 5] = bytes(3 * 21 + 5)
    source = Damaged((shard,), (bytes(frames),), 50).write(tmp_path)
    with _reading(source, engine, on_corrupt="skip", corrupt_budget=9) as stream:
        whole = list(stream)
        assert len(whole) == len(stream) == 8
        masks = [value for batch in whole for value in batch.mask.tolist()]
        assert (len(masks), masks.count(False)) == (RECORDS, 5)
        found = {record for batch in whole for record in batch.records.to_list()}
        assert found == {record for i, record in enumerate(shard) if i not in {4, 9, 10, 11, 12}}
        stream.seek(step=5)
        tail = list(stream)
        assert identities(tail) == identities(whole[5:])
        assert [batch.mask.tolist() for batch in tail] == [b.mask.tolist() for b in whole[5:]]


@pytest.mark.parametrize("engine", ["thread", "process", "feeder"])
def test_what_is_kept_has_no_length_and_resumes(source: str, engine: str) -> None:
    with _reading(source, engine, filter="tests.pipeline.user_functions:is_short") as stream:
        with pytest.raises(TypeError, match="not known"):
            len(stream)
        whole = list(stream)
        assert sum(map(len, whole)) == RECORDS
        for k in stops(range(1, len(whole))):
            stream.load_state_dict(json.loads(json.dumps(whole[k - 1].next_position.to_dict())))
            assert identities(list(stream)) == identities(whole[k:])
        stream.seek(step=2)
        with pytest.raises(ConfigError, match="a step is unknown with filter"):
            list(stream)


@pytest.mark.parametrize("steps", [None, 5])
def test_seek_in_endless_and_counted_streams(source: str, steps: int | None) -> None:
    values = {"epochs": 2, "steps_per_epoch": steps} if steps else {"epochs": None}
    with opened(source, **values) as stream:
        whole = [batch for _ in range(3) for batch in sr.take(stream, 10)]
    for step in (3, 10, 19):
        with opened(source, **values) as stream:
            stream.seek(step=step)
            first = next(iter(stream))
            assert first.next_position == whole[step].next_position
            assert identities([first]) == identities(whole[step : step + 1])


def test_seek_of_single_records(source: str) -> None:
    with opened(source, batch_size=None) as stream:
        whole = list(stream)
        stream.seek(step=11)
        assert list(stream) == whole[11:]


def test_without_an_index_seek_is_refused(source: str) -> None:
    stream = opened(source, index=None)
    stream.seek(step=2)
    with pytest.raises(ConfigError, match="a step is unknown without an index"):
        list(stream)
    with pytest.raises(MalformedPosition, match="there is no step -1"):
        stream.seek(step=-1)
    stream.close()


def test_a_step_farther_than_any_stream_comes_is_refused(source: str) -> None:
    stream = opened(source, epochs=None)
    stream.seek(step=1 << 47)
    with pytest.raises(MalformedPosition, match="farther"):
        list(stream)
    stream.close()


def test_single_records_resume_at_every_record(source: str) -> None:
    with opened(source, batch_size=None) as stream:
        whole = list(stream)
    for k in stops(range(RECORDS)):
        with opened(source, batch_size=None) as stream:
            head = [next(stream) for _ in range(k)]
            state = json.loads(json.dumps(stream.state_dict()))
        with opened(source, batch_size=None) as stream:
            stream.load_state_dict(state)
            assert head + list(stream) == whole


def test_the_state_is_small_and_the_same_for_any_number_of_lanes(source: str) -> None:
    sizes = set()
    for lanes in (4, 64):
        with opened(source, lanes=lanes, epochs=None) as stream:
            next(iter(stream))
            sizes.add(len(json.dumps(stream.state_dict())))
    assert max(sizes) < 512
    assert max(sizes) - min(sizes) < 4


def test_in_asyncio(source: str) -> None:
    async def main() -> None:
        async with opened(source) as stream:
            assert len(stream) == 8
            whole = [batch async for batch in stream]
            stream.seek(step=5)
            assert identities([batch async for batch in stream]) == identities(whole[5:])

    asyncio.run(main())
