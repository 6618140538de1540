from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from streamrec.config import DatasetSettings
from streamrec.errors import FeederDraining, FeederRefused, ObjectNotFound, StoreUnavailable
from streamrec.feeder.server.datasets import ServedDatasets, obstacle_of, opened
from streamrec.feeder.server.server import Feeder
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.support import server_settings
from tests.support import asynchronous

if TYPE_CHECKING:
    from streamrec.feeder.client.connection import AsyncConnection


async def opening(dataset: FakeDataset, *, hang: bool = False) -> FakeDataset:
    await (asyncio.Event().wait() if hang else asyncio.sleep(0))
    return dataset


@asynchronous
async def test_what_was_opened_is_closed_and_the_rest_is_not_waited_for() -> None:
    one, other = FakeDataset(), FakeDataset()
    async with opened({"one": opening(one), "other": opening(other, hang=True)}) as datasets:
        assert await datasets["one"] is one
        assert not datasets["other"].done()
    assert one.closed
    assert datasets["other"].cancelled()
    assert not other.closed


@asynchronous
async def test_a_dataset_is_waited_for() -> None:
    dataset = FakeDataset()
    async with opened({"late": opening(dataset)}) as datasets:
        feeder = Feeder({"here": dataset, **datasets})
        assert feeder.obstacle == "datasets are being opened"
        assert await feeder.dataset("late") is await feeder.dataset("here") is dataset
        assert feeder.obstacle is None
        with pytest.raises(FeederRefused, match="there are: here, late"):
            await feeder.dataset("other")


@asynchronous
async def test_a_refused_client_is_counted() -> None:
    feeder = Feeder({}, server_settings(max_connections=1))
    one, other = (cast("AsyncConnection", object()) for _ in range(2))
    await feeder.admit(one)
    with pytest.raises(FeederDraining, match="serves 1 clients already"):
        await feeder.admit(other)
    assert feeder.statistics.dropped["full"] == 1


@asynchronous
async def test_served_datasets_are_closed_and_one_may_fail() -> None:
    dataset = FakeDataset()

    async def opener(settings: DatasetSettings) -> FakeDataset:
        if settings.source == "absent":
            raise ObjectNotFound("no shard")
        return dataset

    settings = {name: DatasetSettings(source=name) for name in ("here", "absent")}
    async with ServedDatasets(settings, opener) as datasets:
        feeder = Feeder({**datasets})
        assert feeder.obstacle == "datasets are being opened"
        await datasets.tried()
        assert datasets.troubles == {"absent": "no shard"}
        assert feeder.obstacle == "the store of the dataset 'absent' fails: no shard"
        assert await feeder.dataset("here") is dataset
        feeder.failed("here", StoreUnavailable("down"))
        feeder.failed("nowhere", StoreUnavailable("down"))
        assert datasets.troubles.keys() == {"here", "absent"}
        assert await datasets.add("more", DatasetSettings(source="more")) is dataset
    assert dataset.closed


def test_what_is_open_is_no_obstacle() -> None:
    assert obstacle_of(FakeDataset()) is None
