from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from streamrec.devstore import DevStore
from streamrec.errors import ObjectNotFound
from streamrec.feeder.server.server import Feeder
from streamrec.formats.examples.example import encode_example
from streamrec.formats.shards.tfrecord import frame
from streamrec.measure.benchmark import Benchmark
from streamrec.measure.budget import Budget, BudgetSpent
from streamrec.measure.costs import read_prices
from streamrec.measure.figures import Figures, Target
from streamrec.pipeline.dataset import Dataset
from tests.by_day import at_night
from tests.measure.support import limits, settings_for
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from streamrec.config import DatasetSettings

SHARDS, RECORDS = 4, 50
FIELDS = {
    "listing": "listing",
    "first byte": "first_byte",
    "sweep": "sweep",
    "processing": "processing",
    "stream": "job",
}
PHASES = [*FIELDS]


class Notes:
    """A watcher that keeps the phases, and stops the benchmark when one begins."""

    def __init__(self, stop_at: str | None = None) -> None:
        self.phases: list[str] = []
        self.notes: list[str] = []
        self._stop_at = stop_at

    def phase(self, name: str) -> None:
        self.phases.append(name)
        if name == self._stop_at:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def store() -> Iterator[DevStore]:
    with DevStore() as running:
        shard = b"".join(frame(encode_example({"id": n, "x": [0.5] * 64})) for n in range(RECORDS))
        for number in range(SHARDS):
            running.objects[f"bucket/part-{number}"] = shard
        yield running


def benchmark(
    watch: Notes, kind: Any = "store", *, step_seconds: float | None = None, **spend: Any
) -> Benchmark:
    target = Target(kind=kind, urls=["s3://bucket/*"])
    budget = Budget(limits(**{"seconds": 5.0, "requests": 1000, **spend}))
    return Benchmark(target, budget, read_prices(), watch, step_seconds=step_seconds)


async def figures_of(settings: DatasetSettings, watch: Notes, **spend: Any) -> Figures:
    one = benchmark(watch, **spend)
    await one.measure_dataset(settings)
    return one.figures()


def features(store: DevStore, **more: Any) -> DatasetSettings:
    return settings_for(store, features="infer", batch_size=10, **more)


def is_whole(figures: Figures, phases: Sequence[str] = PHASES) -> bool:
    """Return whether each measurement was made, or is said to be left out."""
    left_out = {line.partition(":")[0] for line in figures.unfinished}
    return all(getattr(figures, FIELDS[phase]) is not None or phase in left_out for phase in phases)


@asynchronous
async def test_everything_is_measured_in_order(store: DevStore) -> None:
    watch = Notes()
    figures = await figures_of(features(store), watch)
    assert watch.phases == PHASES
    assert watch.notes
    assert is_whole(figures)
    assert figures.listing is not None
    assert figures.listing.shards == SHARDS
    assert figures.job is not None
    assert figures.costs is not None
    assert figures.costs.spent > 0
    assert Figures.model_validate_json(figures.model_dump_json()) == figures


@pytest.mark.parametrize("requests", [1, at_night(2), 10, at_night(40)])
@asynchronous
async def test_no_more_is_spent_than_allowed(store: DevStore, requests: int) -> None:
    figures = await figures_of(features(store), Notes(), requests=requests, size=200_000)
    counted = store.statistics
    assert counted.requests <= requests
    assert counted.bytes_sent <= 200_000 + 5_000, "a page of a listing besides"
    assert figures.spent.requests == counted.requests
    assert figures.unfinished or (figures.job is not None and figures.job.ended != "budget")


@asynchronous
async def test_records_that_are_no_examples_are_read_raw(store: DevStore) -> None:
    for number in range(SHARDS):
        store.objects[f"bucket/part-{number}"] = frame(b"\xff" * 1000) * RECORDS
    figures = await figures_of(features(store), Notes())
    assert is_whole(figures)
    if figures.processing is not None:
        assert any(why.startswith("parsing: ") for why in figures.unfinished)
        assert figures.processing.parse is None
        assert figures.job is not None


@asynchronous
async def test_records_that_are_no_examples_are_read_raw_without_a_sample(
    store: DevStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def spent(*_: Any) -> NoReturn:
        raise BudgetSpent("no time is left")

    monkeypatch.setattr("streamrec.measure.benchmark.measure_processing", spent)
    for number in range(SHARDS):
        store.objects[f"bucket/part-{number}"] = frame(b"\xff" * 1000) * RECORDS
    figures = await figures_of(features(store), Notes())
    assert figures.processing is None
    assert any(why.startswith("parsing: ") for why in figures.unfinished)
    assert figures.job is not None


@asynchronous
async def test_shards_that_are_not_there(store: DevStore) -> None:
    one = benchmark(Notes(), seconds=60.0)
    with pytest.raises(ObjectNotFound):
        await one.measure_dataset(settings_for(store, "s3://bucket/none-*"))
    assert one.figures().listing is None


@pytest.mark.parametrize("stop_at", [PHASES[1], *map(at_night, PHASES[2:-1]), PHASES[-1]])
@asynchronous
async def test_a_cancellation_keeps_what_was_measured(store: DevStore, stop_at: str) -> None:
    one = benchmark(Notes(stop_at))
    running = asyncio.ensure_future(one.measure_dataset(features(store)))
    await asyncio.wait([running])
    figures = one.figures()
    assert is_whole(figures, PHASES[: PHASES.index(stop_at)])
    assert running.cancelled() or figures.job is not None


@asynchronous
async def test_a_feeder(store: DevStore) -> None:
    dataset = await Dataset.open(features(store))
    async with Feeder({"numbers": dataset}) as feeder:
        address = f"{await feeder.listen('tcp://127.0.0.1:0')}/numbers"
        one = benchmark(Notes(), "feeder", step_seconds=0.0)
        await one.measure_feeder(address)
    await dataset.aclose()
    figures = one.figures()
    assert figures.job is not None
    assert figures.job.records == SHARDS * RECORDS
    assert figures.costs is None
