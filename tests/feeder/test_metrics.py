from __future__ import annotations

import socket
from contextlib import aclosing

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from streamrec.errors import CorruptRecord
from streamrec.feeder.client import AsyncFeed
from streamrec.feeder.metrics import FeederCollector
from streamrec.feeder.server import Feeder
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.support import eventually, server_settings
from tests.support import asynchronous


@asynchronous
async def test_metrics_tell_the_statistics() -> None:
    registry = CollectorRegistry()
    async with Feeder({"train": FakeDataset(steps=3)}) as feeder:
        registry.register(FeederCollector(feeder))
        where = await feeder.listen("tcp://127.0.0.1:0")
        async with aclosing(await AsyncFeed.open(f"{where}/train")) as feed:
            for _ in range(3):
                await feed.receive()
            await eventually(lambda: feeder.statistics.batches["train"] == 3)
            text = generate_latest(registry).decode()
    samples = {
        (sample.name.removeprefix("streamrec_feeder_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["ready",] == samples["connections",] == 1
    assert samples["handshakes",] == 0
    assert samples["connections_opened_total",] == 1
    assert samples["batches_total", "train"] == 3
    assert samples["records_total", "train"] == 24
    assert samples["sent_bytes_total", "train"] == feeder.statistics.bytes["train"]
    assert {key[1] for key in samples if key[0] == "wait_seconds_total"} == {
        "credit",
        "data",
        "socket",
    }


@asynchronous
async def test_who_says_nothing_is_no_client() -> None:
    registry = CollectorRegistry()
    async with Feeder(
        {"train": FakeDataset()}, settings=server_settings(max_handshakes=2)
    ) as feeder:
        registry.register(FeederCollector(feeder))
        where = await feeder.listen("tcp://127.0.0.1:0")
        crowd = [socket.create_connection((where.host, where.port)) for _ in range(5)]
        await eventually(lambda: feeder.statistics.connections_total == 5)
        assert registry.get_sample_value("streamrec_feeder_connections") == 0
        assert registry.get_sample_value("streamrec_feeder_handshakes") == 2
        assert registry.get_sample_value("streamrec_feeder_ready") == 1
        dropped = {
            reason: registry.get_sample_value("streamrec_feeder_dropped_total", {"reason": reason})
            for reason in ("full", "crowd", "handshake", "idle")
        }
        assert dropped == {"full": 0, "crowd": 3, "handshake": 0, "idle": 0}
        for sock in crowd:
            sock.close()


@asynchronous
async def test_faults_are_counted_by_type() -> None:
    registry = CollectorRegistry()
    async with Feeder({"train": FakeDataset(fail_at=0, error=CorruptRecord("bad"))}) as feeder:
        registry.register(FeederCollector(feeder))
        where = await feeder.listen("tcp://127.0.0.1:0")
        async with aclosing(await AsyncFeed.open(f"{where}/train")):
            await eventually(lambda: bool(feeder.statistics.faults))
        labels = {"type": "CorruptRecord"}
        assert registry.get_sample_value("streamrec_feeder_faults_total", labels) == 1


@asynchronous
async def test_a_draining_feeder_is_not_ready() -> None:
    registry = CollectorRegistry()
    feeder = Feeder({"train": FakeDataset()})
    registry.register(FeederCollector(feeder))
    assert registry.get_sample_value("streamrec_feeder_ready") == 1
    await feeder.drain(1)
    assert registry.get_sample_value("streamrec_feeder_ready") == 0
