from __future__ import annotations

import asyncio
import json
import socket
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from streamrec.config.access import ServedSettings
from streamrec.config.daemon import DaemonSettings
from streamrec.errors import ConfigError
from streamrec.feeder.client.client import AsyncFeed
from streamrec.feeder.operate import status
from streamrec.feeder.operate.daemon import _check_memory
from streamrec.feeder.operate.reload import reload
from streamrec.feeder.page.samples import EVERY, MOST, Samples
from streamrec.feeder.server.budget import SharedBudget
from streamrec.feeder.server.datasets import ServedDatasets
from streamrec.feeder.server.server import STANDS, Feeder
from streamrec.flow.loop_delay import LoopDelay
from streamrec.pipeline.dataset import Dataset
from tests.cancellation import cancel_in_every_turn
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.support import eventually, in_simulated_time, server_settings
from tests.pipeline.small_datasets import write
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path

HERE = "127.0.0.1:0"


async def get(bound: str, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://{bound}{path}") as answer:
        return answer.status, await answer.text()


@asynchronous
async def test_health_follows_the_feeder() -> None:
    opening: asyncio.Future[FakeDataset] = asyncio.get_running_loop().create_future()
    feeder = Feeder({"train": opening})
    async with status.serving(HERE, feeder) as bound:
        assert await get(bound, "/livez") == (200, "ok\n")
        assert await get(bound, "/readyz") == (503, "datasets are being opened\n")
        opening.set_result(FakeDataset())
        assert await get(bound, "/readyz") == (200, "ok\n")
        await feeder.drain(1)
        assert await get(bound, "/readyz") == (503, "the feeder is draining\n")
        assert await get(bound, "/livez") == (200, "ok\n")
        assert (await get(bound, "/other"))[0] == 404


@asynchronous
async def test_a_dataset_that_a_reload_adds_and_that_can_serve_nobody_is_told(
    tmp_path: Path,
) -> None:
    source = write(tmp_path, ((10,) * 6,) * 2)
    greedy: dict[str, Any] = {"shuffle": True, "shuffle_window": "1GiB", "memory_budget": "64MiB"}
    started = {"train": ServedSettings(source=source, batch_size=4)}
    more = {**started, "greedy": ServedSettings(source=source, batch_size=4, **greedy)}
    check = partial(_check_memory, SharedBudget(1 << 30))
    async with (
        ServedDatasets(started, Dataset.open, check) as datasets,
        Feeder({**datasets}, server_settings()) as feeder,
        status.serving(HERE, feeder) as bound,
    ):
        await datasets.tried()
        assert await get(bound, "/readyz") == (200, "ok\n")
        loaded = DaemonSettings(server=feeder.settings, datasets=more)
        assert "the dataset 'greedy' is added, and being opened" in await reload(
            feeder, datasets, loaded
        )
        with pytest.raises(ConfigError):
            await datasets["greedy"].tried()
        code, text = await get(bound, "/readyz")
        assert code == 503
        assert "the dataset 'greedy' can serve nobody: " in text
        assert "window" in text


@asynchronous
async def test_a_full_feeder_says_so() -> None:
    async with Feeder(
        {"train": FakeDataset(hang_at=0)}, settings=server_settings(max_connections=1)
    ) as feeder:
        where = await feeder.listen("tcp://127.0.0.1:0")
        async with status.serving("127.0.0.1:0", feeder) as bound:
            assert await get(bound, "/readyz") == (200, "ok\n")
            async with aclosing(await AsyncFeed.open(f"{where}/train")):
                code, text = await get(bound, "/readyz")
            assert code == 503
            assert "serves 1 clients already" in text
            await eventually(lambda: feeder.obstacle is None)
            assert await get(bound, "/readyz") == (200, "ok\n")


@asynchronous
async def test_a_loop_that_stood_still_is_not_ready() -> None:
    now = [0.0]
    async with Feeder({"train": FakeDataset()}) as feeder, status.serving(HERE, feeder) as bound:
        loop = feeder.statistics.loop = LoopDelay(lambda: now[0])
        loop.expect()
        now[0] += STANDS
        loop.note()
        assert await get(bound, "/readyz") == (200, "ok\n")
        now[0] += 7
        loop.note()
        loop.rest()
        code, text = await get(bound, "/readyz")
        assert code == 503
        assert "stood still for 6.9 s" in text or "stood still for 7.0 s" in text
        now[0] += 60
        assert await get(bound, "/readyz") == (200, "ok\n")


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\n\n\n\n",
        b"GET / HTTP/9.9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nx\r\n\r\n",
    ],
)
@asynchronous
async def test_garbage_is_counted_and_told_in_a_line(
    garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with Feeder({}) as feeder, status.serving(HERE, feeder) as bound:
        host, port = bound.split(":")
        for _ in range(3):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(garbage)
            assert (await reader.read()).startswith(b"HTTP/1.")
            writer.close()
        assert feeder.statistics.dropped["garbage"] == 3
        _, text = await get(bound, "/metrics")
    assert 'streamrec_feeder_dropped_total{reason="garbage"} 3.0' in text
    told = [record for record in caplog.records if record.name == "streamrec.feeder"]
    assert [record.exc_info for record in told] == [None] * 3
    assert "else than HTTP from 127.0.0.1" in told[0].getMessage()
    # One message, so that the daemon's log limits its rate, whoever sends it.
    assert len({record.msg for record in told}) == 1


@asynchronous
async def test_metrics_are_those_of_the_feeder() -> None:
    async with (
        Feeder({}) as feeder,
        status.serving(HERE, feeder) as bound,
    ):
        feeder.statistics.connections_total = 42
        code, text = await get(bound, "/metrics")
    assert code == 200
    assert "streamrec_feeder_connections_opened_total 42.0" in text


@asynchronous
async def test_all_of_it_is_there_as_json() -> None:
    async with Feeder({"train": FakeDataset()}) as feeder:
        where = await feeder.listen("tcp://127.0.0.1:0")
        async with (
            status.serving(HERE, feeder) as bound,
            aclosing(await AsyncFeed.open(f"{where}/train")) as feed,
        ):
            await feed.receive()
            code, text = await get(bound, "/status.json")
    shown = json.loads(text)
    assert (code, shown["version"]) == (200, 1)
    (subscription,) = shown["subscriptions"]
    assert (subscription["dataset"], subscription["rank"]) == ("train", 0)
    assert subscription["peer"] == "local"
    assert subscription["now"]["bytes_per_second"] > 0
    assert shown["samples"] == []


@asynchronous
async def test_the_page() -> None:
    async with (
        Feeder({"train": FakeDataset()}) as feeder,
        status.serving(HERE, feeder) as bound,
        aiohttp.ClientSession(f"http://{bound}") as session,
    ):
        for path, refreshes in (("/", True), ("/?still", False)):
            async with session.get(path) as answer:
                text = await answer.text()
            assert (answer.status, answer.content_type) == (200, "text/html")
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
            assert "<h1>streamrec feeder</h1>" in text
            assert ('http-equiv="refresh"' in text) == refreshes


@in_simulated_time
async def test_the_last_minutes_are_sampled() -> None:
    feeder = Feeder({})
    samples = Samples(clock=asyncio.get_running_loop().time)
    async with status.sampling(feeder, samples):
        await asyncio.sleep(30 * 60)
    kept = samples.add_to(feeder.snapshot())["samples"]
    assert len(kept) == MOST
    assert {sample["seconds"] for sample in kept} == {EVERY}


@asynchronous
async def test_closing_is_not_cut_short() -> None:
    place: list[str] = []

    async def serve() -> None:
        async with Feeder({}) as feeder, status.serving(HERE, feeder) as bound:
            place.append(bound)
            await asyncio.Event().wait()

    serving = asyncio.create_task(serve())
    await eventually(lambda: place != [])
    host, _, port = place[0].rpartition(":")
    with socket.create_connection((host, int(port))) as kept:
        await cancel_in_every_turn(asyncio.wait_for(serving, None))
        kept.setblocking(False)
        assert kept.recv(1) == b""


@asynchronous
async def test_ipv6() -> None:
    async with (
        Feeder({}) as feeder,
        status.serving("[::1]:0", feeder) as bound,
    ):
        assert await get(bound, "/livez") == (200, "ok\n")


@asynchronous
async def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        async with Feeder({}) as feeder:
            with pytest.raises(ConfigError, match=f"cannot listen at {where}"):
                async with status.serving(where, feeder):
                    pass
