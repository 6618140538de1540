from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.config.machine import memory_budget
from streamrec.errors import ConfigError, ObjectNotFound
from streamrec.feeder.client.client import BlockingFeed
from streamrec.feeder.engine.engine import Engine, order_for
from streamrec.plan.reading.ranges import sent_bytes
from streamrec.plan.state.resume_point import Beginning
from streamrec.streams.ranks import Rank
from streamrec.streams.session import call_engine, open_engine
from tests.feeder.support import gone
from tests.pipeline.small_datasets import settings_of, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write(tmp_path, ((10,) * 6,) * 4)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    """All engines that are started."""
    engines: list[Engine] = []
    start = Engine.start

    def noted(settings: Any) -> Engine:
        engines.append(start(settings))
        return engines[-1]

    monkeypatch.setattr(Engine, "start", noted)
    return engines


def test_a_rank_has_its_part_of_the_records(source: str, started: list[Engine]) -> None:
    settings = settings_of(source, batch_size=3, epochs=None)
    rows = 0
    for rank in range(2):
        with contextlib.closing(open_engine(settings, Rank(rank, 2), Beginning())) as feed:
            assert feed.settings["batch_size"] == 3
            for _ in range(4):
                rows += len(feed.receive())
    assert rows == 24
    assert all(gone(engine.process.pid) for engine in started)


def test_a_call_does_not_wait_and_begins_anywhere(source: str) -> None:
    settings = settings_of(source, batch_size=4)
    with contextlib.closing(open_engine(settings, Rank(0, 1), Beginning())) as feed:
        feed.receive()
        position = feed.receive().next_position
        expected = feed.receive().records.to_list()
    with contextlib.closing(call_engine(settings, Rank(0, 1), order_for(settings))) as feed:
        assert not feed.has_begun
        feed.begin(position)
        assert feed.receive().records.to_list() == expected


def test_credit_is_a_part_of_the_memory_budget(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(source, batch_size=4, memory_budget="64MiB")
    given: dict[str, Any] = {}
    monkeypatch.setattr(BlockingFeed, "call", lambda _, **options: given.update(options))
    call_engine(settings, Rank(1, 2), order_for(settings))
    given["engine"].close()
    assert given["credit_bytes"] == sent_bytes(memory_budget(settings))
    assert (given["rank"], given["world_size"], given["batch_size"]) == (1, 2, 4)


@pytest.mark.parametrize(
    ("values", "rank", "error"),
    [
        ({}, Rank(2, 2), ConfigError),
        ({"source": "/none/part-*"}, Rank(0, 1), ObjectNotFound),
    ],
)
def test_no_process_outlives_an_error(
    values: dict[str, Any], rank: Rank, error: type[Exception], source: str, started: list[Engine]
) -> None:
    settings = settings_of(**{"source": source, "batch_size": 4, **values})
    with pytest.raises(error):
        open_engine(settings, rank, Beginning())
    (engine,) = started
    assert gone(engine.process.pid)
