from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import FeederDraining, FeederLost, FeederRefused, StoreUnavailable
from streamrec.feeder.operate.log_format import FIELDS
from streamrec.feeder.server.server import Feeder
from streamrec.feeder.server.service import SharedBudget
from streamrec.feeder.server.statistics import (
    MOST_ERRORS,
    MOST_NAME,
    FeederStatistics,
    SessionLog,
    keep_counts,
    merge_snapshots,
)
from streamrec.flow.child_process import HELPERS
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.support import hello, in_simulated_time
from tests.support import asynchronous

if TYPE_CHECKING:
    from streamrec.feeder.server.statistics import Subscription


def facts(record: logging.LogRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in FIELDS if getattr(record, name, None)}


@asynchronous
async def test_a_session(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    session = SessionLog("10.0.0.7:1234")
    session.note_hello(hello(dataset="train", world_size=4))
    session.welcome()
    session.subscribe(3, 12)
    session.count(100)
    session.count(50)
    session.fail(StoreUnavailable("down", url="s3://bucket/a", offset=7))
    session.end(FeederLost("it was closed"))
    welcome, subscribed, failed, ended = caplog.records
    known = {"dataset": "train", "world_size": 4, "peer": "10.0.0.7:1234"}
    assert facts(welcome).items() >= known.items()
    assert subscribed.getMessage() == "a client reads from step 12"
    assert facts(subscribed)["rank"] == 3
    assert failed.levelname == "WARNING"
    assert facts(failed).items() >= {"shard": "s3://bucket/a", "offset": 7, "rank": 3}.items()
    assert ended.getMessage() == "a client has gone: it was closed"
    assert facts(ended).items() >= {"batches": 2, "bytes": 150, **known}.items()
    assert len({facts(record)["subscription"] for record in caplog.records}) == 1


@in_simulated_time
async def test_the_end_tells_how_long_it_took(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await asyncio.sleep(5)
    session = SessionLog("10.0.0.7:1234")
    session.note_hello(hello(dataset="train", world_size=4))
    session.welcome()
    await asyncio.sleep(2)
    session.end(None)
    assert facts(caplog.records[-1])["seconds"] == 2.0


@asynchronous
async def test_a_client_that_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    session = SessionLog("10.0.0.7:1234")
    session.note_hello(hello(dataset="x" * 10_000, token="swordfish"))
    session.fail(FeederRefused("the token is wrong"))
    session.end(None)
    (refused,) = caplog.records
    assert refused.getMessage() == "a client is refused: the token is wrong"
    assert facts(refused)["peer"] == "10.0.0.7:1234"
    assert len(facts(refused)["dataset"]) == MOST_NAME
    assert "swordfish" not in str(vars(refused))


@asynchronous
async def test_others(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    session, other = SessionLog("a"), SessionLog("b")
    session.fail(FeederDraining("go elsewhere"))
    session.fail(ValueError("a bug"))
    session.end(FeederLost("gone"))
    other.welcome()
    other.end(None)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "a client is sent elsewhere: go elsewhere"),
        ("ERROR", "serving a client failed"),
        ("DEBUG", "a connection ends before its client was welcome: gone"),
        ("INFO", "a client is welcome"),
        ("INFO", "a client has gone: it was told why"),
    ]
    assert caplog.records[1].exc_info is not None
    assert vars(caplog.records[0])["subscription"] != vars(caplog.records[3])["subscription"]


def subscribed(statistics: FeederStatistics, rank: int = 0) -> Any:
    facts = {"rank": rank, "world_size": 2, "batch_size": 8, "peer": "10.0.0.5"}
    return statistics.subscribe("train", **facts)


def run_of(statistics: FeederStatistics, subscription: Subscription, batches: int) -> None:
    dataset = FakeDataset()
    dataset.counts = True
    run = dataset.run(rank=0, world_size=1, batch_size=8, position=None)
    subscription.begin(run)
    for step in range(batches):
        run._step = step + 1
        statistics.count_batch(subscription, step + 1, 8, 1000)


def test_a_subscription_is_shown_while_it_lasts() -> None:
    statistics = FeederStatistics()
    with subscribed(statistics, rank=1) as subscription:
        run_of(statistics, subscription, 3)
        (shown,) = statistics.snapshot()["subscriptions"]
    assert shown["waits"].keys() == {"client"}
    assert shown["since"] >= statistics.started
    expected = {"id": 1, "dataset": "train", "rank": 1, "world_size": 2, "batch_size": 8}
    counts = {"peer": "10.0.0.5", "step": 3, "batches": 3, "records": 24, "bytes": 3000}
    assert shown.items() >= {**expected, **counts}.items()
    assert statistics.snapshot()["subscriptions"] == []


def test_totals_never_go_back() -> None:
    statistics = FeederStatistics()
    seen = [0]

    def look() -> None:
        seen.append(statistics.snapshot()["datasets"]["train"]["fetch"]["requests"])

    for batches in (3, 5):
        with subscribed(statistics) as subscription:
            run_of(statistics, subscription, batches)
            look()
            subscription.finish()
            look()
            run_of(statistics, subscription, 1)
            look()
        look()
    assert seen == [0, 3, 3, 4, 4, 9, 9, 10, 10]


def test_the_text_of_an_error_is_bounded() -> None:
    statistics = FeederStatistics()
    statistics.count_fault("ValueError", "\x1b" + "x" * 10**6)
    (error,) = statistics.snapshot()["errors"]
    assert error["message"].startswith("?xxx")
    assert len(error["message"]) < 10_000


def test_the_last_errors_are_kept() -> None:
    statistics = FeederStatistics()
    for number in range(MOST_ERRORS + 5):
        statistics.count_fault("CorruptRecord", str(number))
    snapshot = statistics.snapshot()
    assert [error["message"] for error in snapshot["errors"]][-1] == str(MOST_ERRORS + 4)
    assert len(snapshot["errors"]) == MOST_ERRORS


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_workers_add_up(workers: list[int]) -> None:
    whole = Feeder({"train": FakeDataset()}, budget=SharedBudget(9)).snapshot()
    snapshots, ended = [], []
    for number, batches in enumerate(workers):
        feeder = Feeder({"train": FakeDataset()})
        feeder.statistics.worker = number
        with subscribed(feeder.statistics) as subscription:
            run_of(feeder.statistics, subscription, batches)
            feeder.statistics.count_fault("CorruptRecord", "bad", peer="local")
            feeder.statistics.count_opening("train", 0.5)
            snapshots.append(json.loads(json.dumps(feeder.snapshot())))
        ended.append(keep_counts(snapshots[-1]))
    total = merge_snapshots(whole, snapshots)
    assert total.keys() == whole.keys()
    assert total["subscriptions"][0].keys() == snapshots[0]["subscriptions"][0].keys()
    train = total["datasets"]["train"]
    assert train["sent"]["batches"] == train["fetch"]["requests"] == sum(workers)
    assert train["waits"]["list"] == pytest.approx(0.5 * len(workers))
    assert [each["worker"] for each in total["subscriptions"]] == list(range(len(workers)))
    assert train["now"]["subscriptions"] == len(workers)
    assert (train["state"], train["shards"]) == ("open", 2)
    assert total["faults"] == {"CorruptRecord": len(workers)}
    assert len(total["errors"]) == len(workers)
    assert total["budget"]["limit"] == 9
    assert total["obstacle"] == whole["obstacle"]
    again = merge_snapshots(whole, [merge_snapshots(ended[0], ended[1:])])
    assert again["subscriptions"] == []
    assert again["datasets"]["train"]["now"] == {"subscriptions": 0}
    assert total["cpu_seconds"] > sum(part["cpu_seconds"] for part in snapshots) > 0
    for name in ("faults", "errors", "timings", "connections_opened"):
        assert again[name] == total[name], "what was counted stays when the workers have ended"
    assert again["datasets"]["train"]["sent"] == train["sent"]


def test_a_dataset_that_only_one_worker_knows() -> None:
    whole, part = Feeder({}).snapshot(), Feeder({"train": FakeDataset()}).snapshot()
    assert merge_snapshots(whole, [part])["datasets"] == part["datasets"]


def test_the_cpu_time_of_fetch_processes_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HELPERS, "_ended", 1e6)
    assert FeederStatistics().snapshot()["cpu_seconds"] > 1e6
