from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import socket
import time
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from streamrec.config import DatasetSettings
from streamrec.config.daemon import DaemonSettings, ServedSettings
from streamrec.errors import ConfigError, CorruptRecord
from streamrec.feeder.client.client import AsyncFeed
from streamrec.feeder.operate import status
from streamrec.feeder.operate.daemon import _check_memory
from streamrec.feeder.operate.signals import reload
from streamrec.feeder.operate.status import SnapshotCollector, _results, headers, page
from streamrec.feeder.page.samples import EVERY, MOST, Samples
from streamrec.feeder.page.view import MOST_ROWS
from streamrec.feeder.server.datasets import ServedDatasets
from streamrec.feeder.server.server import STANDS, Feeder
from streamrec.feeder.server.service import SharedBudget
from streamrec.flow.child_process import HELPERS
from streamrec.flow.timings import LoopDelay, Timings
from streamrec.pipeline.dataset import Dataset
from tests.cancellation import cancel_in_every_turn
from tests.documents import HOSTILE, Tags
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.page.snapshots import sample, snapshot
from tests.feeder.shards import write_shards
from tests.feeder.support import eventually, in_simulated_time, server_settings
from tests.pipeline.small_datasets import write
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def hostile() -> dict[str, Any]:
    error = {
        "time": 0.0,
        "type": HOSTILE,
        "message": HOSTILE * 1000,
        "dataset": HOSTILE,
        "rank": 1,
        "peer": HOSTILE,
    }
    found = snapshot(HOSTILE, errors=[error] * 20, obstacle=HOSTILE)
    found["datasets"][HOSTILE] |= {"state": "failed", "problem": HOSTILE * 1000}
    return found


def test_foreign_text_stays_text() -> None:
    document = page(hostile())
    tags = Tags(document)
    assert not {"script", "iframe", "img", "object"} & {tag for tag, _ in tags.found}
    assert document.count("<style>") == document.count("</style>") == 1
    assert "<script>alert(1)</script>'\"{{ 7 * 7 }}?]0;x?" in tags.text
    assert not re.search("[\x00-\x08\x0b-\x1f]", document)
    assert len(document) < 100_000


@pytest.mark.parametrize("refreshes", [True, False])
def test_nothing_runs_and_nothing_is_loaded(refreshes: bool) -> None:
    found = snapshot(samples=[sample(), sample()])
    for tag, attributes in Tags(page(found, refreshes=refreshes)).found:
        assert tag not in ("script", "img", "iframe", "form")
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        assert "src" not in attributes
        href = attributes.get("href") or ""
        assert href.startswith("data:image/svg+xml,") or re.fullmatch(r"[a-z.?]*", href)
    refresh = '<meta http-equiv="refresh" content="5">'
    assert (refresh in page(found, refreshes=refreshes)) == refreshes


def test_the_policy_allows_the_page_s_own_style_alone() -> None:
    (style,) = re.findall(r"<style>(.*)</style>", page(snapshot()), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = headers()["Content-Security-Policy"]
    assert "default-src 'none';" in policy
    assert f"style-src 'sha256-{digest}';" in policy
    assert "url(" not in style
    assert "@import" not in style


def test_a_feeder_that_has_just_started() -> None:
    text = Tags(page(snapshot(clients=0))).text
    assert "Nobody reads now." in text
    assert "None: no client reads now." in text
    assert "The first sample is taken within seconds." in text
    assert "None was sent to a client since the start." in text


def test_a_full_page() -> None:
    samples = [sample(waits={"first_byte": 3.0, "body": 1.0}) for _ in range(MOST)]
    budget = {"used": 1 << 20, "lent": 8 << 20, "limit": 4 << 20}
    document = page(snapshot(samples=samples, clients=MOST_ROWS + 1, budget=budget))
    text = Tags(document).text
    assert (
        "longest for the first bytes of each read: the latency of the store, or of the disk."
        in text
    )
    assert "first_byte 75%, body 25%" in text
    assert "and 1 more subscriptions" in text
    assert len(document) < 200_000


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
        await datasets.wait_until_tried()
        assert await get(bound, "/readyz") == (200, "ok\n")
        loaded = DaemonSettings(server=feeder.settings, datasets=more)
        assert "the dataset 'greedy' is added, and being opened" in await reload(
            feeder, datasets, loaded
        )
        with pytest.raises(ConfigError):
            await datasets["greedy"].wait_until_tried()
        code, text = await get(bound, "/readyz")
        assert code == 503
        assert "the dataset 'greedy' cannot be served: " in text
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
    used = re.search(r"^streamrec_feeder_cpu_seconds_total (\S+)$", text, re.MULTILINE)
    assert used
    assert 0 < float(used[1]) <= time.process_time() + HELPERS.total()


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
