from __future__ import annotations

import asyncio
import io
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

import streamrec as sr
from streamrec.config import DatasetSettings, validate
from streamrec.devstore import DevStore
from streamrec.errors import ObjectNotFound
from streamrec.feeder.server.server import Feeder
from streamrec.flow.channel import EndOfStream
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.shards.tfrecord import frame
from streamrec.measure.budget import Budget
from streamrec.measure.figures import Limits, Sample
from streamrec.measure.job import TASKS, CoreSeconds, CoreTimes, Trainer, run_feeder_job, run_job
from streamrec.pipeline.dataset import Dataset
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from streamrec.measure.figures import Job


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("streamrec.measure.job.TASKS", tmp_path)
    return tmp_path


def put(tasks: Path, thread: int, text: str) -> None:
    (tasks / str(thread)).mkdir(exist_ok=True)
    (tasks / str(thread) / "schedstat").write_text(text)


def test_threads_are_added_up_from_the_beginning_on(tasks: Path) -> None:
    put(tasks, 1, "5000000000 1000000000 12\n")
    times = CoreTimes()
    assert times.seconds() == CoreSeconds(0, 0)
    put(tasks, 1, "6000000000 3000000000 13\n")
    put(tasks, 2, "500000000 250000000 1\n")
    assert times.seconds() == CoreSeconds(1.5, 2.25)


def test_a_thread_that_ended_counts_as_it_was_last_seen(tasks: Path) -> None:
    times = CoreTimes()
    put(tasks, 1, "2000000000 1000000000 1\n")
    times.seconds()
    (tasks / "1" / "schedstat").unlink()
    assert times.seconds() == CoreSeconds(2, 1)


@pytest.mark.parametrize("text", [None, "", "no numbers here\n"])
def test_some_systems_do_not_tell_it(text: str | None, tasks: Path) -> None:
    if text is not None:
        put(tasks, 1, text)
    assert CoreTimes().seconds() is None


@pytest.mark.skipif(not TASKS.exists(), reason="only Linux tells it")
def test_work_in_a_thread_is_seen() -> None:
    times = CoreTimes()
    done, worked = threading.Event(), threading.Event()

    def work() -> None:
        while time.thread_time() < 0.02:
            pass
        worked.set()
        done.wait()

    thread = threading.Thread(target=work)
    thread.start()
    worked.wait()
    found = times.seconds()
    done.set()
    thread.join()
    assert found is not None
    assert found.ran >= 0.015
    assert found.waited >= 0


TOLD: dict[str, Any] = {"waits": {"body": 1.0}, "bytes_used": 30, "bytes_read": 40, "requests": 3}


@asynchronous
async def test_it_takes_all_batches_and_keeps_the_account() -> None:
    batches: deque[Any] = deque([b"123", b"4567"])
    samples: list[Any] = []

    async def receive() -> Any:
        if not batches:
            raise EndOfStream
        return batches.popleft()

    trainer = Trainer(0.0, samples.append, lambda: TOLD)
    await trainer.take_all(receive)
    job = trainer.job("stream")
    assert (job.batches, job.records, job.bytes, job.bytes_read, job.requests) == (2, 7, 30, 40, 3)
    assert (job.waits, job.hedges, job.concurrency) == (TOLD["waits"], 0, None)
    assert [(sample.bytes, sample.records) for sample in samples] == [(30, 7)]
    assert job.seconds == trainer.seconds, "the clock stands still at the end"
    assert 0 <= job.stalled <= 1


@asynchronous
async def test_the_end_of_a_job_may_cut_a_step_short() -> None:
    async def receive() -> Any:
        if waits:
            await asyncio.Event().wait()
        return [1]

    for waits in (False, True):
        trainer = Trainer(60.0, lambda _: None, lambda: TOLD)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await trainer.take_all(receive)
        job = trainer.job("seconds")
        assert (job.unfinished_step_seconds > 0) is not waits
        assert job.unfinished_step_seconds <= job.seconds


@asynchronous
async def test_an_error_closes_the_account_too() -> None:
    async def receive() -> Any:
        raise RuntimeError("broken")

    trainer = Trainer(None, lambda _: None, lambda: TOLD)
    with pytest.raises(RuntimeError):
        await trainer.take_all(receive)
    job = trainer.job("interrupt")
    assert job.first_batch_seconds == job.seconds == trainer.waited
    assert (job.batches, job.stalled) == (0, 0.0)


SHARDS, RECORDS, LENGTH = 4, 8, 4096
BYTES = SHARDS * RECORDS * (LENGTH + 16)
PICTURE = describe({"picture": sr.Image((256, 256, 3))})
STEP = 0.02


@pytest.fixture
def store() -> Iterator[DevStore]:
    with DevStore() as running:
        shard = frame(b"x" * LENGTH) * RECORDS
        for number in range(SHARDS):
            running.objects[f"bucket/part-{number}"] = shard
        yield running


def settings_of(store: DevStore, **values: Any) -> DatasetSettings:
    given = {
        "source": "s3://bucket/part-*",
        "storage_options": store.storage_options,
        "batch_size": 4,
        "memory_budget": "32MiB",
        **values,
    }
    return validate(DatasetSettings, given)


def budget(requests: int = 1000, size: int = 1 << 30) -> Budget:
    return Budget(Limits(seconds=60, bytes=size, requests=requests))


async def job_of(settings: DatasetSettings, seconds: float = 30.0, **arguments: Any) -> Job:
    return await run_job(settings, arguments.pop("budget", budget()), seconds=seconds, **arguments)


def adds_up(job: Job) -> bool:
    """Return whether the stages add up to the job's time, and those of the producer to the wait."""
    stalled = job.first_batch_seconds + job.stalled * (job.seconds - job.first_batch_seconds)
    waits = sum(seconds for stage, seconds in job.waits.items() if stage != "client")
    parts = sum(job.waits.values())
    return bool(parts == about(job.seconds, job) and waits == about(stalled, job))


def about(seconds: float, job: Job) -> Any:
    """Return so many seconds, give or take those in which the job's threads had to wait for a core.

    The job has a clock of its own, and a busy machine may stop between the readings of the two.
    """
    return pytest.approx(seconds, rel=0.02, abs=0.05 + (job.core_wait_seconds or 0.0))


async def that_adds_up(
    measure: Callable[[], Awaitable[Job]], stage: str | None = None, least: float = 0.0
) -> Job:
    """Return a job whose stages add up to its time, the first of at most five.

    If a stage is named, the job must have waited longer than ``least`` seconds for it: on a busy
    machine the trainer may come so late that all is there.

    A collection of garbage or a stop of the whole machine between two readings of the clock belongs
    to no stage, and no counter tells of it. It does not hit five jobs in succession.
    """
    for _ in range(4):
        job = await measure()
        if adds_up(job) and (stage is None or job.waits.get(stage, 0.0) > least):
            return job
    job = await measure()
    assert adds_up(job), job.waits
    assert stage is None or job.waits[stage] > least, job.waits
    return job


def gets(store: DevStore) -> int:
    return store.statistics.by_kind["GetObject"]


def slow(batch: Any) -> dict[str, Any]:
    time.sleep(STEP)
    return dict(batch)


@asynchronous
async def test_the_whole_stream(store: DevStore) -> None:
    samples: list[Sample] = []
    spent = budget()
    job = await job_of(settings_of(store), budget=spent, on_sample=samples.append)
    assert (job.ended, job.batches, job.records) == ("stream", 8, SHARDS * RECORDS)
    assert job.bytes == job.bytes_read == BYTES
    assert job.requests == spent.spent.requests - 1 == gets(store), "the listing is one more"
    assert job.samples == samples
    assert sum(sample.bytes for sample in samples) == job.bytes
    assert sum(sample.seconds for sample in samples) == pytest.approx(job.seconds)
    assert 0 < job.first_batch_seconds <= job.seconds
    assert job.concurrency_reason
    assert job.step_seconds is None
    assert job.listed_seconds is not None
    assert 0 < job.listed_seconds <= job.waits["list"]


@asynchronous
async def test_names_are_not_listed(store: DevStore) -> None:
    job = await job_of(settings_of(store, source="s3://bucket/part-0"))
    assert job.listed_seconds == 0


PLANTED: dict[str, tuple[dict[str, Any], dict[str, Any], str, float]] = {
    "latency": ({"latency": 0.1}, {}, "first_byte", 0.1),
    "connection": ({"bandwidth": 100e3}, {"lanes": 1, "max_concurrency": 1}, "body", 0.1),
    "link": ({"link": 300e3}, {}, "body", 0.1),
    "throttling": ({"request_rate": 4}, {}, "first_byte", 0.0),
    "listing": ({"page_latency": 0.2}, {}, "list", 0.2),
    "transform": ({}, {"transform": slow}, "transform", 0.0),
    "map": ({}, {"map": slow}, "transform", 0.0),
}


@pytest.mark.parametrize("name", PLANTED)
@asynchronous
async def test_the_parts_add_up_for_each_bottleneck(name: str) -> None:
    plant, settings, stage, least = PLANTED[name]
    with DevStore(**plant) as store:
        for number in range(SHARDS):
            store.objects[f"bucket/part-{number}"] = frame(b"x" * LENGTH) * RECORDS
        job = await that_adds_up(lambda: job_of(settings_of(store, **settings)), stage, least * 0.9)
    assert job.batches == 8
    assert (job.throttled > 0) == (name == "throttling")


@asynchronous
async def test_the_parts_add_up_for_a_slow_decoder(store: DevStore) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (256, 256, 3), np.uint8)
    Image.fromarray(pixels).save(file := io.BytesIO(), "PNG")
    shard = frame(sr.encode_example({"picture": file.getvalue()})) * RECORDS
    store.objects["bucket/part-0"] = shard
    settings = settings_of(store, source="s3://bucket/part-0", features=PICTURE)
    job = await that_adds_up(lambda: job_of(settings), "decode")
    assert job.batches == RECORDS / 4


@asynchronous
async def test_a_slow_trainer_is_the_bottleneck(store: DevStore) -> None:
    job = await that_adds_up(lambda: job_of(settings_of(store), step_seconds=STEP))
    assert job.waits["client"] >= 8 * STEP * 0.99
    assert job.step_seconds == STEP


@asynchronous
async def test_a_budget_ends_it_and_what_came_is_kept(store: DevStore) -> None:
    settings = settings_of(store, lanes=1, max_concurrency=1)
    requests_before = 0

    async def measure() -> Job:
        nonlocal requests_before
        requests_before = gets(store)
        return await job_of(settings, budget=budget(requests=3))

    job = await that_adds_up(measure)
    assert job.ended == "budget"
    assert gets(store) - requests_before == job.requests == 2
    assert job.records == 2 * RECORDS


@asynchronous
async def test_its_time_ends_it(store: DevStore) -> None:
    settings = settings_of(store, epochs=None)
    job = await that_adds_up(lambda: job_of(settings, seconds=0.3, step_seconds=1e-3))
    assert job.ended == "seconds"
    assert job.seconds >= 0.3


@asynchronous
async def test_it_may_end_before_the_first_batch() -> None:
    with DevStore(latency=60) as store:
        store.objects["bucket/part-0"] = b""
        job = await that_adds_up(lambda: job_of(settings_of(store), seconds=0.1))
    assert (job.ended, job.batches, job.records, job.bytes) == ("seconds", 0, 0, 0)
    assert job.first_batch_seconds == job.seconds == about(job.waits["list"], job)


@asynchronous
async def test_a_cancellation_ends_it_and_what_came_is_kept(store: DevStore) -> None:
    began = asyncio.Event()

    def watch(sample: Sample) -> None:
        if sample.records:
            began.set()

    settings = settings_of(store, epochs=None, max_concurrency=8)
    running = asyncio.create_task(job_of(settings, step_seconds=1e-3, on_sample=watch))
    await began.wait()
    running.cancel()
    job = await running
    assert job.ended == "interrupt"
    assert job.batches > 0
    assert running.cancelling() == 1


@asynchronous
async def test_an_error_is_raised(store: DevStore) -> None:
    with pytest.raises(ObjectNotFound):
        await job_of(settings_of(store, source="s3://bucket/nothing-*"))


class TestFeeder:
    @asynchronous
    async def test_a_feeder_s_stream(self, store: DevStore) -> None:
        dataset = await Dataset.open(settings_of(store))
        async with Feeder({"train": dataset}) as feeder:
            address = f"{await feeder.listen('tcp://127.0.0.1:0')}/train"
            budgets: list[Budget] = []

            async def measure() -> Job:
                budgets.append(budget())
                return await run_feeder_job(address, budgets[-1], seconds=30, step_seconds=STEP)

            job = await that_adds_up(measure)
        await dataset.aclose()
        spent = budgets[-1].spent
        assert (job.ended, job.batches, job.records) == ("stream", 8, SHARDS * RECORDS)
        assert job.bytes == job.bytes_read == spent.bytes >= SHARDS * RECORDS * LENGTH
        assert spent.requests == 0, "a batch is no request to a store"
        assert job.waits["client"] >= 8 * STEP * 0.99

    @asynchronous
    async def test_a_budget_ends_it(self, store: DevStore) -> None:
        dataset = await Dataset.open(settings_of(store))
        async with Feeder({"train": dataset}) as feeder:
            address = f"{await feeder.listen('tcp://127.0.0.1:0')}/train"
            job = await that_adds_up(
                lambda: run_feeder_job(address, budget(size=5 * 4 * LENGTH), seconds=30)
            )
        await dataset.aclose()
        assert (job.ended, job.batches) == ("budget", 4)
