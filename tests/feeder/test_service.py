from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from streamrec.errors import FeederDraining, FeederRefused
from streamrec.feeder.service import DatasetHandle, Service, opened
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.support import server_settings
from tests.support import asynchronous

if TYPE_CHECKING:
    from streamrec.feeder.connection import AsyncConnection


async def opening(dataset: FakeDataset, *, hang: bool = False) -> DatasetHandle:
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
        service = Service({"here": dataset, **datasets})
        assert service.obstacle == "datasets are being opened"
        assert await service.dataset("late") is await service.dataset("here") is dataset
        assert service.obstacle is None
        with pytest.raises(FeederRefused, match="there are: here, late"):
            await service.dataset("other")


def test_a_refused_client_is_counted() -> None:
    service = Service({}, server_settings(max_connections=1))
    one, other = (cast("AsyncConnection", object()) for _ in range(2))
    service.admit(one)
    with pytest.raises(FeederDraining, match="serves 1 clients already"):
        service.admit(other)
    assert service.statistics.dropped["full"] == 1
