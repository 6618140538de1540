from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pytest

from streamrec.config import DatasetSettings, validate
from streamrec.errors import (
    AccessDenied,
    ConfigError,
    CorruptRecord,
    FeederDraining,
    FeederRefused,
    ObjectNotFound,
    StoreUnavailable,
    StreamrecError,
)
from streamrec.feeder.functions.sent_functions import identity_of
from streamrec.feeder.server.datasets import (
    LONGEST_WAIT,
    ServedDataset,
    ServedDatasets,
    obstacle_of,
    open_all,
)
from streamrec.feeder.server.server import Feeder
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.support import eventually, in_simulated_time, server_settings
from tests.support import asynchronous

if TYPE_CHECKING:
    from streamrec.feeder.client.connection import AsyncConnection


SETTINGS = DatasetSettings(source="double")
DOWN = StoreUnavailable("the store is down", url="s3://bucket/a")


class Store:
    """Opens datasets, or fails as its ``errors`` say, one after the other, the last for ever."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.opened: list[FakeDataset] = []
        self.times: list[float] = []

    async def open(self, settings: DatasetSettings) -> FakeDataset:
        assert settings is SETTINGS
        self.times.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0)
        error = self.errors.pop(0) if len(self.errors) > 1 else self.errors[0]
        if error is not None:
            raise error
        self.opened.append(FakeDataset())
        return self.opened[-1]

    def serve(self) -> ServedDataset:
        return ServedDataset("train", SETTINGS, self.open, Random(1))


@in_simulated_time
async def test_it_is_waited_for() -> None:
    store = Store(None)
    served = store.serve()
    assert served.obstacle == "datasets are being opened"
    assert await served is store.opened[0]
    await served.wait_until_tried()
    assert served.obstacle is None
    assert repr(served) == "<ServedDataset train: open>"
    await served.aclose()
    assert store.opened[0].closed


def doubled(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: 2 * column for name, column in columns.items()}


@in_simulated_time
async def test_a_cache_of_mapped_records_has_the_key_of_its_function() -> None:
    given: list[DatasetSettings] = []

    async def open_dataset(settings: DatasetSettings) -> FakeDataset:
        given.append(settings)
        return FakeDataset()

    cache = {"of": "mapped", "size": "16MiB"}
    settings = validate(DatasetSettings, {"source": "double", "map": doubled, "cache": cache})
    served = ServedDataset("train", settings, open_dataset, Random(1))
    await served
    await served.aclose()
    assert settings.cache is not None
    assert settings.cache.key is None
    assert given[0].cache is not None
    assert given[0].cache.key == await asyncio.to_thread(identity_of, doubled)
    assert given[0].map is settings.map


@pytest.mark.parametrize("error", [DOWN, ObjectNotFound("no shard"), AccessDenied("not allowed")])
@in_simulated_time
async def test_what_a_store_refuses_is_tried_again(error: StreamrecError) -> None:
    store = Store(error, error, None)
    served = store.serve()
    await served.wait_until_tried()
    assert served.obstacle == f"the store of the dataset 'train' fails: {error}"
    with pytest.raises(StoreUnavailable, match="tries again by itself") as caught:
        await served
    assert caught.value.retryable
    assert str(error) in str(caught.value)
    await eventually(lambda: served.obstacle is None)
    assert await served is store.opened[0]
    await served.aclose()


@in_simulated_time
async def test_the_waits_grow_to_a_bound() -> None:
    store = Store(DOWN)
    served = store.serve()
    await asyncio.sleep(100 * LONGEST_WAIT)
    waits = [late - early for early, late in zip(store.times, store.times[1:], strict=False)]
    assert waits[0] <= 1
    assert max(waits) > LONGEST_WAIT / 2
    assert max(waits) <= LONGEST_WAIT
    await served.aclose()


@pytest.mark.parametrize("error", [ConfigError("wrong"), CorruptRecord("bad"), ValueError("bug")])
@in_simulated_time
async def test_other_faults_stay(error: Exception) -> None:
    store = Store(error)
    served = store.serve()
    for wait in (served.wait_until_tried, served._get):
        with pytest.raises(type(error)) as caught:
            await wait()
        assert caught.value is error
    assert served.obstacle == f"the dataset 'train' cannot be opened: {error}"
    assert len(store.times) == 1
    await served.aclose()


@in_simulated_time
async def test_a_store_that_fails_later_is_asked_until_it_answers() -> None:
    store = Store(None, DOWN, DOWN, None)
    served = store.serve()
    dataset = await served
    served.note_failure(DOWN)
    with pytest.raises(StoreUnavailable, match="store of the dataset 'train' fails"):
        await served
    served.note_failure(DOWN)  # another client's
    await eventually(lambda: served.obstacle is None)
    assert await served is dataset
    assert [found.closed for found in store.opened] == [False, True]
    await served.aclose()
    assert store.opened[0].closed


@in_simulated_time
async def test_a_store_that_answers_otherwise_is_no_reason_to_refuse_clients() -> None:
    store = Store(None, MemoryError())
    served = store.serve()
    dataset = await served
    served.note_failure(DOWN)
    await eventually(lambda: served.obstacle is None)
    assert await served is dataset
    await served.aclose()


@pytest.mark.parametrize("error", [CorruptRecord("bad"), ObjectNotFound("deleted"), ValueError()])
@in_simulated_time
async def test_other_faults_of_streams_are_not_the_store_s(error: Exception) -> None:
    served = Store(None).serve()
    await served
    served.note_failure(error)
    assert served.obstacle is None
    await served.aclose()


@in_simulated_time
async def test_closed_while_it_waits_it_tries_no_more() -> None:
    store = Store(DOWN)
    served = store.serve()
    await served.wait_until_tried()
    await served.aclose()
    tries = len(store.times)
    await asyncio.sleep(1000)
    assert len(store.times) == tries


@pytest.mark.parametrize(("size", "told"), [(None, {}), (7, {"bytes": 7})])
def test_the_log_of_an_open_dataset_has_its_bytes_where_they_are_known(
    size: int | None,
    told: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(FakeDataset, "stored_bytes", size)

    @in_simulated_time
    async def serve() -> None:
        served = Store(None).serve()
        await served
        await served.aclose()

    with caplog.at_level("INFO", "streamrec.feeder"):
        serve()
    (line,) = [each for each in caplog.records if "is open" in each.message]
    assert {name: found for name, found in vars(line).items() if name == "bytes"} == told


async def opening(dataset: FakeDataset, *, hang: bool = False) -> FakeDataset:
    await (asyncio.Event().wait() if hang else asyncio.sleep(0))
    return dataset


@asynchronous
async def test_what_was_opened_is_closed_and_the_rest_is_not_waited_for() -> None:
    one, other = FakeDataset(), FakeDataset()
    async with open_all({"one": opening(one), "other": opening(other, hang=True)}) as datasets:
        assert await datasets["one"] is one
        assert not datasets["other"].done()
    assert one.closed
    assert datasets["other"].cancelled()
    assert not other.closed


@asynchronous
async def test_a_dataset_is_waited_for() -> None:
    dataset = FakeDataset()
    async with open_all({"late": opening(dataset)}) as datasets:
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
        await datasets.wait_until_tried()
        assert datasets.troubles == {"absent": "no shard"}
        assert feeder.obstacle == "the store of the dataset 'absent' fails: no shard"
        assert await feeder.dataset("here") is dataset
        feeder.note_failure("here", StoreUnavailable("down"))
        feeder.note_failure("nowhere", StoreUnavailable("down"))
        assert datasets.troubles.keys() == {"here", "absent"}
        assert await datasets.add("more", DatasetSettings(source="more")) is dataset
    assert dataset.closed


def test_what_is_open_is_no_obstacle() -> None:
    assert obstacle_of(FakeDataset()) is None
