from __future__ import annotations

import asyncio
import os
import platform
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec
from streamrec import kernel
from streamrec.devstore import DevStore, FaultRule
from streamrec.errors import ObjectNotFound
from streamrec.feeder.server.server import Feeder
from streamrec.formats.examples.example import encode_example
from streamrec.formats.shards.tfrecord import frame
from streamrec.measure.benchmark import (
    MOST_AT_A_TIME,
    SAMPLE,
    Benchmark,
    describe_machine,
    find_counted_range,
    measure_first_byte,
    measure_listing,
    together,
)
from streamrec.measure.budget import Budget, BudgetSpent, read_prices
from streamrec.measure.figures import Figures, Target
from streamrec.pipeline.dataset import Dataset
from streamrec.stores.base.source_text import expand
from tests.by_day import at_night
from tests.measure.support import limits, place, settings_for
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from streamrec.config import DatasetSettings


async def number(value: int) -> int:
    await asyncio.sleep(0)
    return value


@asynchronous
async def test_results_are_in_order() -> None:
    assert await together(number(value) for value in range(5)) == [0, 1, 2, 3, 4]
    assert await together([]) == []


@asynchronous
async def test_an_error_ends_the_others_and_comes_alone() -> None:
    ended: list[str] = []

    async def hang() -> int:
        try:
            await asyncio.Event().wait()
            return 0
        finally:
            ended.append("hang")

    async def fail() -> int:
        await asyncio.sleep(0)
        raise KeyError("no")

    with pytest.raises(KeyError, match="no"):
        await together([hang(), fail(), hang()])
    assert ended == ["hang", "hang"]


LATENCY_SHARDS = {f"part-{number}": bytes(64 << 10) for number in range(4)}


@asynchronous
async def test_all_requests_of_the_budget_are_measured() -> None:
    async with place(LATENCY_SHARDS, limits(requests=50)) as found:
        told: list[float] = []
        times = await measure_first_byte(found.store, found.shards, found.budget, told.append)
        assert times.seconds == sorted(told)
        assert len(told) == 48  # two have opened connections
        assert times.seconds[0] <= times.p50 <= times.p99 <= times.p999 <= times.seconds[-1]
        records = found.devstore.statistics.records
        assert len({(record.path, record.range) for record in records}) > 20


@asynchronous
async def test_requests_to_a_far_store_overlap() -> None:
    async with place(LATENCY_SHARDS, limits(requests=60), latency=0.03) as found:
        await measure_first_byte(found.store, found.shards, found.budget)
        assert 1 < found.devstore.statistics.peak_in_flight <= MOST_AT_A_TIME


@asynchronous
async def test_there_are_no_more_than_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrec.measure.benchmark.MOST_TIMES", 20)
    async with place({"small": b"x"}) as found:
        times = await measure_first_byte(found.store, found.shards, found.budget)
        assert len(times.seconds) == 20


@asynchronous
async def test_failed_attempts_are_no_times() -> None:
    faults = [
        FaultRule(ranged=True, nth=5, status=503),
        FaultRule(ranged=True, nth=7, reset_after=10),
    ]
    async with place(LATENCY_SHARDS, limits(requests=30), faults=faults) as found:
        times = await measure_first_byte(found.store, found.shards, found.budget)
        assert len(times.seconds) < 28


@asynchronous
async def test_without_a_time_there_are_no_figures() -> None:
    async with place(LATENCY_SHARDS, limits(requests=1)) as found:
        with pytest.raises(BudgetSpent):
            await measure_first_byte(found.store, found.shards, found.budget)


@asynchronous
async def test_an_error_comes_alone() -> None:
    faults = [FaultRule(ranged=True, nth=20, status=404, code="NoSuchKey")]
    async with place(LATENCY_SHARDS, faults=faults) as found:
        with pytest.raises(ObjectNotFound):
            await measure_first_byte(found.store, found.shards, found.budget)


@given(st.integers(0, 3000), st.integers(1, 50), st.sampled_from([0, 5]), st.sampled_from("-a7"))
def test_it_is_expanded_to_the_same_shards(start: int, more: int, width: int, end: str) -> None:
    names = [f"s3://b/v2/part{end}-{n:0{width}}.rec" for n in range(start, start + more + 1)]
    found = find_counted_range(sorted(names))
    assert found is not None
    assert expand(found) == names


def test_the_usual_names() -> None:
    names = expand("gs://b/train@128")
    assert find_counted_range(names) == "gs://b/train-{00000..00127}-of-00128"


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["s3://b/part-0"],
        ["s3://b/part-0", "s3://b/part-2"],
        ["s3://b/part-a", "s3://b/part-b"],
        ["s3://b/part-0", "s3://b/other-1"],
        ["s3://b/part-00", "s3://b/part-1"],
        ["s3://b/[x]-0", "s3://b/[x]-1"],
        ["s3://b/{5..1}-0", "s3://b/{5..1}-1"],
        ["https://user:secret@host/part-0", "https://user:secret@host/part-1"],
    ],
)
def test_other_names_have_none(names: list[str]) -> None:
    assert find_counted_range(names) is None


def put(store: DevStore, count: int) -> None:
    for number in range(count):
        store.put(f"bucket/part-{number:05}", b"x" * 100)


@asynchronous
async def test_a_listing() -> None:
    async with DevStore() as store:
        put(store, 2500)
        budget = Budget(limits())
        listing, shards = await measure_listing(settings_for(store), budget)
        assert (listing.shards, listing.bytes) == (2500, 250_000)
        assert listing.requests == budget.spent.requests == store.statistics.requests >= 3
        assert listing.seconds > 0
        assert listing.counted == "s3://bucket/part-{00000..02499}"
        assert [info.size for info in shards] == [100] * 2500
        assert [info.url for info in shards] == sorted(info.url for info in shards)


@asynchronous
async def test_the_sizes_of_some_named_shards_are_looked_up() -> None:
    async with DevStore() as store:
        put(store, 1000)
        budget = Budget(limits())
        settings = settings_for(store, "s3://bucket/part-{00000..00999}")
        listing, shards = await measure_listing(settings, budget)
        assert (listing.shards, listing.bytes) == (1000, 100_000)
        assert listing.requests == 1, "an object of this very name is looked for"
        assert listing.counted is None, "nothing is listed"
        known = [info for info in shards if info.size is not None]
        assert SAMPLE / 2 <= len(known) == budget.spent.requests - 1 <= SAMPLE
        assert all(info.etag for info in known)


@asynchronous
async def test_a_listing_stops_at_the_budget() -> None:
    async with DevStore() as store:
        put(store, 2500)
        with pytest.raises(BudgetSpent, match="2 requests"):
            await measure_listing(settings_for(store), Budget(limits(requests=2)))
        assert store.statistics.requests == 2


@asynchronous
async def test_a_missing_shard_is_an_error_of_its_own() -> None:
    async with DevStore() as store:
        put(store, 1)
        settings = settings_for(store, "s3://bucket/part-{00000..00003}")
        with pytest.raises(ObjectNotFound):
            await measure_listing(settings, Budget(limits()))


@pytest.mark.both_kernels
def test_this_machine() -> None:
    found = describe_machine()
    assert found.cpu
    assert 1 <= found.cores <= (os.cpu_count() or 1)
    assert found.memory_bytes > 1 << 20
    assert platform.python_version() in found.python
    assert found.streamrec == streamrec.__version__
    assert found.kernel == kernel.implementation


@pytest.mark.parametrize("text", [None, "", "processor\t: 0\nBogoMIPS\t: 50.00\n"])
def test_a_processor_without_a_name_has_an_architecture(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr("streamrec.measure.benchmark.CPUINFO", path)
    assert describe_machine().cpu == platform.machine()


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
