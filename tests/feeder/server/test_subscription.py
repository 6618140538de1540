from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from streamrec.errors import FeederDraining, FeederLost, FeederRefused, StoreUnavailable
from streamrec.feeder.operate.log_format import FIELDS
from streamrec.feeder.server.subscription import MOST_NAME, SessionLog
from tests.feeder.support import hello, in_simulated_time
from tests.support import asynchronous

if TYPE_CHECKING:
    import pytest


def facts(record: logging.LogRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in FIELDS if getattr(record, name, None)}


@asynchronous
async def test_a_session(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    session = SessionLog("10.0.0.7:1234")
    session.hello(hello(dataset="train", world_size=4))
    session.welcomed()
    session.subscribed(3, 12)
    session.sent(100)
    session.sent(50)
    session.failed(StoreUnavailable("down", url="s3://bucket/a", offset=7))
    session.ended(FeederLost("it was closed"))
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
    session.hello(hello(dataset="train", world_size=4))
    session.welcomed()
    await asyncio.sleep(2)
    session.ended(None)
    assert facts(caplog.records[-1])["seconds"] == 2.0


@asynchronous
async def test_a_client_that_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    session = SessionLog("10.0.0.7:1234")
    session.hello(hello(dataset="x" * 10_000, token="swordfish"))
    session.failed(FeederRefused("the token is wrong"))
    session.ended(None)
    (refused,) = caplog.records
    assert refused.getMessage() == "a client is refused: the token is wrong"
    assert facts(refused)["peer"] == "10.0.0.7:1234"
    assert len(facts(refused)["dataset"]) == MOST_NAME
    assert "swordfish" not in str(vars(refused))


@asynchronous
async def test_others(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    session, other = SessionLog("a"), SessionLog("b")
    session.failed(FeederDraining("go elsewhere"))
    session.failed(ValueError("a bug"))
    session.ended(FeederLost("gone"))
    other.welcomed()
    other.ended(None)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "a client is sent elsewhere: go elsewhere"),
        ("ERROR", "serving a client failed"),
        ("DEBUG", "a connection ends before anybody was welcome: gone"),
        ("INFO", "a client is welcome"),
        ("INFO", "a client has gone: it was told why"),
    ]
    assert caplog.records[1].exc_info is not None
    assert vars(caplog.records[0])["subscription"] != vars(caplog.records[3])["subscription"]
