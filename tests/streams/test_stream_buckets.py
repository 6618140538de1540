"""Buckets of records of like length, through every engine and a feeder."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.config import DatasetSettings, validate
from streamrec.errors import ConfigError, OtherOrder
from streamrec.feeder.server.server import Feeder
from streamrec.formats.shards.tfrecord import frame
from streamrec.pipeline.dataset import Dataset
from tests.streams.test_stream import ENGINES

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.streams.stream import Stream

ORDER: dict[str, Any] = {"shuffle": True, "seed": 5, "shuffle_window": "1MiB", "lanes": 3}


@pytest.fixture
def source(tmp_path: Path) -> str:
    random = np.random.default_rng(0)
    for shard in range(3):
        lengths = random.integers(1, 500, 80).tolist()
        (tmp_path / f"{shard}.tfrecord").write_bytes(b"".join(frame(bytes(n)) for n in lengths))
    return f"{tmp_path}/*.tfrecord"


def stream_of(source: str, **settings: Any) -> Stream:
    return sr.open(source, **{**ORDER, "batch_size": 12, "length_buckets": 4, **settings})


def lengths_of(batches: list[Any]) -> list[list[int]]:
    return [np.diff(batch.records.offsets).tolist() for batch in batches]


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_gives_the_same_batches_of_like_length(source: str, name: str) -> None:
    settings, take = ENGINES[name]
    found = lengths_of(take(stream_of(source, **settings)))
    assert found == lengths_of(list(stream_of(source, engine="thread")))
    plain = lengths_of(take(stream_of(source, length_buckets=None, **settings)))
    assert sorted(sum(found, [])) == sorted(sum(plain, []))  # noqa: RUF017 - they are few
    widths, plain_widths = (sum(map(max, batches)) for batches in (found, plain))
    assert widths < 0.75 * plain_widths


def test_a_state_goes_on_in_another_process_and_only_with_as_many_buckets(source: str) -> None:
    with stream_of(source, engine="thread") as stream:
        whole = [next(stream) for _ in range(7)]
        state = json.loads(json.dumps(stream.state_dict()))
        rest = lengths_of(list(stream))
    assert len(whole) + len(rest) == 20
    resumed = stream_of(source, engine="process")
    resumed.load_state_dict(state)
    with resumed:
        assert lengths_of(list(resumed)) == rest
    for buckets in (5, None):
        other = stream_of(source, engine="thread", length_buckets=buckets)
        other.load_state_dict(state)
        with pytest.raises(OtherOrder, match="stages was '4 length buckets'"), other:
            pass


def test_a_feeders_clients_choose_their_batches(source: str) -> None:
    """The order of the buckets is that of the client's global batch."""
    values = {"source": source, **ORDER, "length_buckets": 4}

    async def main() -> None:
        dataset = await Dataset.open(validate(DatasetSettings, values))
        async with Feeder({"data": dataset}) as feeder:
            address = f"{await feeder.listen('tcp://127.0.0.1:0')}/data"
            for size in (12, 30):
                stream = sr.connect(address, batch_size=size, rank=0, world_size=1)
                async with stream:
                    found = lengths_of([batch async for batch in stream])
                async with stream_of(source, batch_size=size) as own:
                    assert lengths_of([batch async for batch in own]) == found
            singly = sr.connect(address, rank=0, world_size=1)
            with pytest.raises(ConfigError, match="length_buckets sort records into whole batches"):
                await singly.__aenter__()
        await dataset.aclose()

    asyncio.run(main())
