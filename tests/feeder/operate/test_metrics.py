from __future__ import annotations

import socket
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from streamrec.config import DatasetSettings
from streamrec.errors import CorruptRecord
from streamrec.feeder.client.client import AsyncFeed
from streamrec.feeder.operate.metrics import SnapshotCollector, _results
from streamrec.feeder.server.budget import SharedBudget
from streamrec.feeder.server.server import Feeder
from streamrec.flow.loop_delay import LoopDelay
from streamrec.flow.timings import Timings
from streamrec.pipeline.dataset import Dataset
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.shards import write_shards
from tests.feeder.support import eventually, server_settings
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def scraped(snapshot: Mapping[str, Any]) -> dict[tuple[str, ...], float]:
    """Return the samples by name, without its common beginning, and by the labels' values."""
    text = generate_latest(SnapshotCollector(snapshot)).decode()
    return {
        (
            sample.name.removeprefix("streamrec_"),
            *(value for _, value in sorted(sample.labels.items())),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@asynchronous
async def test_metrics_tell_the_snapshot() -> None:
    async with Feeder({"train": FakeDataset(steps=3)}) as feeder:
        where = await feeder.listen("tcp://127.0.0.1:0")
        async with aclosing(await AsyncFeed.open(f"{where}/train")) as feed:
            for _ in range(3):
                await feed.receive()
            await eventually(lambda: feeder.statistics.batches["train"] == 3)
            now = [0.0]
            loop = feeder.statistics.loop = LoopDelay(lambda: now[0])
            loop.expect()
            now[0] += 2
            loop.note()
            loop.rest()
            samples = scraped(feeder.snapshot())
    assert samples["feeder_ready",] == samples["feeder_connections",] == 1
    assert samples["feeder_handshakes",] == 0
    assert samples["feeder_connections_opened_total",] == 1
    assert samples["feeder_subscriptions", "train"] == 1
    assert samples["feeder_dataset_open", "train"] == 1
    assert samples["feeder_dataset_shards", "train"] == 2
    assert samples["feeder_batches_total", "train"] == 3
    assert samples["feeder_records_total", "train"] == 24
    assert samples["feeder_read_records_total", "train", "good"] == 24
    assert samples["feeder_sent_bytes_total", "train"] == feeder.statistics.bytes["train"]
    assert samples["feeder_wait_seconds_total", "train", "wire"] > 0
    assert samples["feeder_client_stall_seconds_total", "train"] > 0
    assert samples["feeder_loop_delay_seconds_count",] == 1
    assert 1.9 < samples["feeder_loop_delay_recent_seconds",] < 2


@asynchronous
async def test_a_real_dataset_tells_of_its_requests(tmp_path: Path) -> None:
    source = write_shards(tmp_path, shards=4, records=100)
    settings = DatasetSettings(source=source, batch_size=32, epochs=1)
    dataset = await Dataset.open(settings)
    async with Feeder({"data": dataset}) as feeder:
        where = await feeder.listen("tcp://127.0.0.1:0")
        async with aclosing(await AsyncFeed.open(f"{where}/data")) as feed:
            for _ in range(400 // 32):
                await feed.receive()
            during = scraped(feeder.snapshot())
        await eventually(lambda: not feeder.statistics.subscriptions)
        after = scraped(feeder.snapshot())
    await dataset.aclose()
    requests = after["fetch_requests_total", "data"]
    assert requests >= during["fetch_requests_total", "data"] > 0
    assert after["fetch_read_bytes_total", "data"] > 0
    for name in ("first_byte", "request_duration"):
        assert after[f"store_{name}_seconds_count", "read", "file"] == requests
        assert after[f"store_{name}_seconds_bucket", "+Inf", "read", "file"] == requests
        assert after[f"store_{name}_seconds_count", "list", "file"] == 1
    assert after["fetch_buffer_bytes", "data"] == after["feeder_subscriptions", "data"] == 0


def test_buckets_are_cumulated() -> None:
    timings = Timings()
    for seconds in (0.0005, 0.02, 0.02, 60):
        timings.observe("s3", "read", seconds, seconds)
    samples = scraped({**Feeder({}).snapshot(), "timings": timings.to_dict()})
    name = "store_first_byte_seconds_bucket"
    counts = [samples[name, bound, "read", "s3"] for bound in ("0.001", "0.01", "0.025", "+Inf")]
    assert counts == [1, 1, 3, 4]


def test_a_limit_is_shown_where_it_is_known() -> None:
    assert ("feeder_memory_limit_bytes",) not in scraped(Feeder({}).snapshot())
    budget = SharedBudget(7)
    budget.lend(4, 4)
    samples = scraped(Feeder({}, budget=budget).snapshot())
    assert samples["feeder_memory_limit_bytes",] == 7
    assert samples["feeder_memory_lent_bytes",] == 4


def test_hostile_names_are_escaped() -> None:
    snapshot = Feeder({'a"}\n\\x 1': FakeDataset()}).snapshot()
    assert scraped(snapshot)["feeder_dataset_open", 'a"}\n\\x 1'] == 1


@asynchronous
async def test_who_says_nothing_is_no_client() -> None:
    async with Feeder(
        {"train": FakeDataset()}, settings=server_settings(max_handshakes=2)
    ) as feeder:
        where = await feeder.listen("tcp://127.0.0.1:0")
        crowd = [socket.create_connection((where.host, where.port)) for _ in range(5)]
        await eventually(lambda: feeder.statistics.connections_total == 5)
        samples = scraped(feeder.snapshot())
        for sock in crowd:
            sock.close()
    assert samples["feeder_connections",] == 0
    assert samples["feeder_handshakes",] == 2
    assert samples["feeder_ready",] == 1
    dropped = {key[1]: value for key, value in samples.items() if key[0] == "feeder_dropped_total"}
    assert dropped.pop("crowd") == 3
    assert dropped == dict.fromkeys(["full", "handshake", "tls", "idle", "garbage", "status"], 0)


@asynchronous
async def test_faults_are_counted_by_type() -> None:
    async with Feeder({"train": FakeDataset(fail_at=0, error=CorruptRecord("bad"))}) as feeder:
        where = await feeder.listen("tcp://127.0.0.1:0")
        async with aclosing(await AsyncFeed.open(f"{where}/train")):
            await eventually(lambda: bool(feeder.statistics.faults))
        assert scraped(feeder.snapshot())["feeder_faults_total", "CorruptRecord"] == 1


@asynchronous
async def test_a_draining_feeder_is_not_ready() -> None:
    feeder = Feeder({"train": FakeDataset()})
    assert scraped(feeder.snapshot())["feeder_ready",] == 1
    await feeder.drain(1)
    assert scraped(feeder.snapshot())["feeder_ready",] == 0


def test_results_that_nobody_has_counted_are_none() -> None:
    datasets = {"train": {"sent": {"records": 5}, "fetch": {"skipped_records": 2}}}
    assert {labels[1]: count for labels, count in _results(datasets)} == {
        "good": 5,
        "skipped": 2,
        "quarantined": 0,
        "refetched": 0,
    }
