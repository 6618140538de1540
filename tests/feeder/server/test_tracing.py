from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.errors import ConfigError, CorruptRecord
from streamrec.feeder.client.client import AsyncFeed
from streamrec.feeder.server import tracing
from streamrec.feeder.server.server import Feeder
from streamrec.feeder.server.tracing import exporting
from tests.feeder.collector import collector
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.support import eventually
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Callable

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="streamrec[otel]")


async def one_client(address: str | None, dataset: FakeDataset, batches: int) -> None:
    """Serve some batches to one client, with traces."""
    async with exporting(address) as traces, Feeder({"train": dataset}) as feeder:
        feeder.statistics.tracing = None if traces is None else traces.subscribed
        where = await feeder.listen("tcp://127.0.0.1:0")
        async with aclosing(await AsyncFeed.open(f"{where}/train")) as feed:
            for _ in range(batches):
                await feed.receive()
            if dataset.error is not None:
                with pytest.raises(CorruptRecord):
                    await feed.receive()
        await eventually(lambda: not feeder.statistics.subscriptions)


def attributes(span: Any) -> dict[str, Any]:
    values = ((a.key, a.value, a.value.WhichOneof("value")) for a in span.attributes)
    return {key: getattr(value, kind) for key, value, kind in values}


@asynchronous
async def test_a_subscription_is_a_span() -> None:
    with collector() as (address, received):
        await one_client(address, FakeDataset(), 2)
    first, whole = received
    assert (first.name, whole.name) == ("first batch", "subscription")
    assert first.parent_span_id == whole.span_id
    assert not whole.parent_span_id
    assert whole.start_time_unix_nano <= first.end_time_unix_nano <= whole.end_time_unix_nano
    found = attributes(whole)
    shown = {"streamrec.dataset": "train", "streamrec.rank": 0, "client.address": "local"}
    assert found.items() >= shown.items()
    assert found["streamrec.batches"] >= 2
    assert "streamrec.wait.client" in attributes(first)
    assert whole.status.code == 0  # a client that leaves is no failure


@asynchronous
async def test_a_failure_is_that_of_the_span() -> None:
    error = CorruptRecord("a record is damaged", url="https://host/a?X-Amz-Signature=1")
    with collector() as (address, received):
        await one_client(address, FakeDataset(fail_at=0, error=error), 0)
    first, whole = received
    assert attributes(whole)["error.type"] == "CorruptRecord"
    assert "a record is damaged" in whole.status.message
    assert "Signature" not in whole.status.message
    assert (whole.status.code, first.status.code) == (2, 0)


@asynchronous
async def test_the_standard_variables_turn_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as (address, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        await one_client(None, FakeDataset(), 1)
        assert len(received) == 2
        for name, value in (("OTEL_TRACES_EXPORTER", "none"), ("OTEL_SDK_DISABLED", "true")):
            with monkeypatch.context() as changed:
                changed.setenv(name, value)
                await one_client(None, FakeDataset(), 1)
    assert len(received) == 2


@asynchronous
async def test_it_is_off_by_default(started_threads: Callable[[], set[str]]) -> None:
    async with exporting(None) as traces:
        assert traces is None
        assert not [name for name in started_threads() if name.startswith("Otel")]


@asynchronous
async def test_a_collector_that_is_down_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "TIMEOUT", 0.05)
    with collector() as (address, _):
        pass
    async with asyncio.timeout(60):
        await one_client(address, FakeDataset(), 2)


@asynchronous
async def test_without_the_extra(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[otel\]'"):
        async with exporting("http://127.0.0.1:1"):
            pass
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    async with exporting(None) as traces:
        assert traces is None
    assert "pip install -e '.[otel]'" in caplog.text
