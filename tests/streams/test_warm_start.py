from __future__ import annotations

import contextlib
import gc
import gzip
import signal
import threading
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.config import DatasetSettings
from streamrec.errors import ConfigError, CorruptRecord, FeederLost, ObjectNotFound, Stalled
from streamrec.feeder.client.client import BlockingFeed
from streamrec.feeder.engine.engine import Engine
from streamrec.flow.channel import EndOfStream
from streamrec.plan.state.resume_point import Beginning
from streamrec.stores.base.protocol import ObjectInfo
from streamrec.streams.ranks import Rank
from streamrec.streams.warm_start import (
    ENOUGH,
    LOOK_EVERY,
    SHORT,
    TrainerClock,
    WarmStartSession,
    _is_short,
    _wait_for_lock,
    can_warm_start,
)
from tests.by_day import at_night, stops
from tests.feeder.support import gone, until
from tests.pipeline.small_datasets import contents, identities, write
from tests.support import open_fds, with_gil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from streamrec.pipeline.batch.batch import Batch
    from streamrec.plan.state.position import Position


SHARDS = ((40,) * 13, (), (30,) * 8, (500,) * 5)
TOTAL = 26
NEVER = 1 << 30


@pytest.fixture(autouse=True)
def _no_run_is_short(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "short" not in request.node.name:
        monkeypatch.setattr("streamrec.streams.warm_start.SHORT", 0)


@pytest.fixture(autouse=True)
def _trainers_are_busy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "trainer" not in request.node.name:
        monkeypatch.setattr(TrainerClock, "is_busy", True)


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write(tmp_path / "raw", SHARDS)


@pytest.fixture
def leaves_nothing() -> Iterator[None]:
    gc.collect()  # what the tests before have left
    files, threads = open_fds(), set(threading.enumerate())
    yield
    gc.collect()
    until(lambda: set(threading.enumerate()) <= threads)
    until(lambda: open_fds() <= files)


def answers_at(monkeypatch: pytest.MonkeyPatch, look: int) -> None:
    """Let the process be seen to be ready at that look, counted from 0, and from then on."""
    looks = count()
    monkeypatch.setattr(BlockingFeed, "answers", property(lambda _: next(looks) >= look))


def settings(source: str, **values: Any) -> DatasetSettings:
    """Return settings with little read ahead: the thread delivers to the end what it has ready."""
    plain = {"source": source, "batch_size": 4, "prefetch": 1, **values}
    return DatasetSettings.model_validate(plain)


def opened(source: str, **values: Any) -> WarmStartSession:
    return WarmStartSession(settings(source, **values), Rank(0, 1), Beginning())


def engine_of(session: WarmStartSession) -> Engine:
    assert session._feed is not None
    assert isinstance(session._feed._engine, Engine)
    return session._feed._engine


def pid_of(session: WarmStartSession) -> int:
    return engine_of(session).process.pid


def run_of(session: WarmStartSession) -> list[Batch]:
    batches = []
    try:
        while True:
            batches.append(session.receive())
    except EndOfStream:
        return batches


def alone(source: str, runs: int = 1, **values: Any) -> list[list[Batch]]:
    """Return the batches of a thread alone."""
    stream = sr.open(source, engine="thread", rank=0, world_size=1, batch_size=4, **values)
    with stream:
        return [list(stream) for _ in range(runs)]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"epochs": 2, "remainder": "drop"},
        {"ordered": False},
        {"shuffle": True, "epochs": 2},
        {"length_buckets": 2, "epochs": 2},
    ],
)
@pytest.mark.usefixtures("leaves_nothing")
def test_the_same_batches_wherever_the_process_takes_over(
    source: str, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any]
) -> None:
    (whole,) = alone(source, **values)
    for look in stops(range(0, len(whole) + 2, 3)):  # tests of Run.halt stop at every k
        answers_at(monkeypatch, look)
        session = opened(source, **values)
        batches = run_of(session)
        assert session._thread is None or look >= len(whole) - 2
        if values.get("ordered", True):
            assert identities(batches) == identities(whole)
            assert [b.next_position for b in batches] == [b.next_position for b in whole]
        assert sorted(contents(batches)) == sorted(contents(whole))
        assert session.position is not None
        assert session.position["epoch"] == values.get("epochs", 1)
        session.close()
        session.close()
        assert gone(pid_of(session))


@pytest.mark.parametrize("look", [0, at_night(3), 8])
def test_runs_go_on_where_the_last_one_ended(
    source: str, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    values = {"steps_per_epoch": 5, "epochs": 1}
    expected = alone(source, runs=3, **values)
    answers_at(monkeypatch, look)
    session = opened(source, **values)
    for run in expected:
        assert contents(run_of(session)) == contents(run)
        session.subscribe()
    session.close()


@pytest.mark.usefixtures("leaves_nothing")
def test_a_short_run_starts_no_process(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrec.streams.warm_start.ENOUGH", 0)
    (whole,) = alone(source)
    session = opened(source)
    assert identities(run_of(session)) == identities(whole)
    assert session._feed is None
    session.close()


@pytest.mark.parametrize("look", [1, 3, NEVER])
def test_a_short_stream_that_runs_again_waits_for_no_process(
    source: str, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    monkeypatch.setattr("streamrec.streams.warm_start.ENOUGH", 0)
    expected = alone(source, runs=2)
    answers_at(monkeypatch, look)
    with contextlib.closing(opened(source)) as session:
        for run in expected:
            assert session._feed is None
            assert contents(run_of(session)) == contents(run)
            session.subscribe()
        assert not gone(pid_of(session))
        assert (session._thread is None) == (look < NEVER)


@pytest.mark.parametrize(
    ("values", "sizes", "is_short"),
    [
        ({}, [SHORT - 9, 9], True),
        ({}, [SHORT, 1], False),
        ({}, [1, None], False),
        ({"epochs": 2}, [SHORT // 2 + 1], False),
        ({"epochs": None}, [1], False),
        ({"steps_per_epoch": 3}, [1], False),
    ],
)
def test_which_runs_are_short(
    values: dict[str, Any], sizes: list[int | None], *, is_short: bool
) -> None:
    objects = [ObjectInfo(f"/{i}", size) for i, size in enumerate(sizes)]
    assert _is_short(settings("/x", **values), Rank(0, 1), objects) is is_short


def test_a_run_of_several_ranks_is_shorter() -> None:
    objects = [ObjectInfo("/x", 2 * SHORT)]
    assert not _is_short(settings("/x"), Rank(0, 1), objects)
    assert _is_short(settings("/x"), Rank(0, 2), objects)


@with_gil
@pytest.mark.parametrize("name", ["part.tfrecord", "part.tfrecord.gz"])
def test_single_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    data = Path(write(tmp_path, ((20,) * 1000,)).replace("*", "00000")).read_bytes()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    with sr.open(str(tmp_path / name), engine="thread", rank=0, world_size=1) as stream:
        expected = [bytes(record) for record in stream]
    answers_at(monkeypatch, 1)
    with sr.open(str(tmp_path / name), rank=0, world_size=1, prefetch=1) as stream:
        assert [bytes(record) for record in stream] == expected
        assert isinstance(stream._session, WarmStartSession)
        assert stream._session._thread is None


def test_every_state_of_either_resumes_exactly(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = alone(source)
    answers_at(monkeypatch, 3)
    stream = sr.open(source, rank=0, world_size=1, batch_size=4, prefetch=1)
    states = [stream.state_dict()] + [stream.state_dict() for _ in stream]
    stream.close()
    for k, state in enumerate(states):
        rest = sr.open(source, rank=0, world_size=1, batch_size=4, engine="thread")
        rest.load_state_dict(state)
        with rest:
            assert identities(list(rest)) == identities(whole[k:])


@pytest.mark.usefixtures("leaves_nothing")
def test_a_process_that_is_not_needed_ends_at_once(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers_at(monkeypatch, NEVER)
    session = opened(source)
    assert sum(map(len, run_of(session))) == TOTAL
    session.close()
    assert engine_of(session).process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("most", [len(SHARDS), NEVER])
def test_the_process_reads_what_the_thread_has_listed(
    source: str, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """A shard that is written meanwhile changes no order."""
    (whole,) = alone(source)
    answers_at(monkeypatch, 2)
    monkeypatch.setattr("streamrec.feeder.engine.engine.MOST_LISTED", most)
    with contextlib.closing(opened(source)) as session:
        first = Path(source.replace("*", "00000"))
        Path(source.replace("*", "00009")).write_bytes(first.read_bytes())
        assert identities(run_of(session)) == identities(whole)
        assert session._thread is None


def test_the_process_lists_a_source_of_many_shards_itself(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = alone(source)
    answers_at(monkeypatch, 2)
    monkeypatch.setattr("streamrec.feeder.engine.engine.MOST_LISTED", len(SHARDS) - 1)
    with contextlib.closing(opened(source)) as session:
        assert identities(run_of(session)) == identities(whole)
        assert session._thread is None


@pytest.mark.usefixtures("leaves_nothing")
def test_settings_that_cannot_be_sent_are_refused_at_once(source: str) -> None:
    with pytest.raises(ConfigError, match="cannot be sent to an engine process"):
        opened(source, storage_options={"session": object()})


@with_gil
def test_a_failure_to_start_loses_no_batch(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (whole,) = alone(source)

    def fail(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("streamrec.feeder.engine.engine._spawn", fail)
    with sr.open(source, rank=0, world_size=1, batch_size=4) as stream:
        batches = iter(stream)
        taken = [next(batches)]
        with pytest.raises(ConfigError, match="temporarily unavailable"):
            next(batches)
        monkeypatch.undo()
        taken += list(stream)
        assert identities(taken) == identities(whole)


def test_the_process_starts_once_the_trainer_has_worked_after_a_batch(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainerClock, "is_busy", True)
    with contextlib.closing(opened(source)) as session:
        session.receive()
        assert session._feed is None
        session.receive()
        assert not gone(pid_of(session))


@pytest.mark.usefixtures("leaves_nothing")
def test_what_is_wrong_is_said_without_the_process(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFound):
        opened(str(tmp_path / "none-*"))


def test_a_thread_reads_no_further_than_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = ENOUGH // 8
    source = write(tmp_path, ((size,) * 30,))
    answers_at(monkeypatch, NEVER)
    session = opened(source, batch_size=2)
    assert identities(run_of(session)) == [(0, record) for record in range(30)]
    assert session._thread is None
    assert ENOUGH <= session._counted["bytes_used"] < 2 * ENOUGH
    session.close()


def test_no_process_starts_for_a_trainer_that_waits(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamrec.streams.warm_start.ENOUGH", 0)
    monkeypatch.setattr(TrainerClock, "is_busy", False)
    expected = alone(source, runs=2)
    with contextlib.closing(opened(source)) as session:
        for run in expected:
            assert contents(run_of(session)) == contents(run)
            assert session._feed is None
            session.subscribe()


@pytest.mark.parametrize("look", [0, 2, NEVER])
@pytest.mark.usefixtures("leaves_nothing")
def test_beside_a_trainer_that_has_waited_the_thread_reads_until_the_process_is_ready(
    source: str, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    monkeypatch.setattr("streamrec.streams.warm_start.ENOUGH", 0)
    monkeypatch.setattr(TrainerClock, "is_busy", False)
    (whole,) = alone(source)
    answers_at(monkeypatch, look)
    with contextlib.closing(opened(source)) as session:
        batches = [session.receive(), session.receive()]
        assert session._feed is None
        monkeypatch.setattr(TrainerClock, "is_busy", True)
        batches += run_of(session)
        assert identities(batches) == identities(whole)
        assert (session._thread is None) == (look < NEVER)
        assert not gone(pid_of(session))


def test_fetch_processes_start_with_the_process_after_the_first_batch_of_a_trainer(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainerClock, "is_busy", False)
    with contextlib.closing(opened(source, fetch_processes=1)) as session:
        session.receive()
        assert session._feed is None
        session.receive()
        assert not gone(pid_of(session))


def test_a_trainer_is_busy_that_works_for_a_while_and_a_good_part_of_the_time() -> None:
    now = 0.0
    trainer = TrainerClock(lambda: now, lambda: 0.0001)
    for waited, worked, is_busy in (
        (1.0, 0.04, False),
        (0.0, 0.02, True),
        (1.0, 0.0, False),
        (0.0, 1.0, True),
    ):
        now += waited
        trainer.start()
        now += worked
        trainer.stop()
        trainer.stop()
        assert trainer.is_busy is is_busy


def test_a_trainer_is_busy_whose_other_threads_hold_the_lock() -> None:
    now, waits = 0.0, [0.005] * 11 + [0.0005] * 9
    trainer = TrainerClock(lambda: now, iter(waits).__next__)
    for looks, is_busy in ((9, False), (2, True), (9, False)):
        for _ in range(2 * looks):
            now += LOOK_EVERY / 2
            trainer.start()
            trainer.stop()
        assert trainer.is_busy is is_busy


def test_a_trainer_that_begins_to_work_after_an_hour_is_busy_soon() -> None:
    now = 0.0
    trainer = TrainerClock(lambda: now, lambda: 0.0001)
    for _ in range(3600):
        trainer.start()
        trainer.stop()
        now += 1.0
    assert not trainer.is_busy
    for _ in range(4):
        trainer.start()
        now += 1.0
        trainer.stop()
    assert trainer.is_busy


def test_a_thread_that_holds_the_lock_is_noticed() -> None:
    ended = threading.Event()

    def spin() -> None:
        while not ended.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        until(lambda: _wait_for_lock() >= 0.004)
    finally:
        ended.set()
        thread.join()


@with_gil
def test_a_process_that_died_is_said_and_nothing_is_lost(source: str) -> None:
    stream = sr.open(source, rank=0, world_size=1, batch_size=4, prefetch=1)
    with stream:
        taken = [next(stream), next(stream)]
        assert isinstance(stream._session, WarmStartSession)
        engine = engine_of(stream._session)
        engine.process.kill()
        engine.process.wait()
        with pytest.raises(FeederLost, match="SIGKILL") as caught:
            next(stream)
        assert caught.value.position == stream.state_dict()  # not behind what is still ready
    with stream:
        assert sum(map(len, stream)) == TOTAL - sum(map(len, taken))


@with_gil
def test_a_process_that_stalls_is_said_and_nothing_is_lost(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stall(_: BlockingFeed, position: Position) -> None:
        raise Stalled("it stands still", stage="decompress", position=position.to_dict())

    stream = sr.open(source, rank=0, world_size=1, batch_size=4, prefetch=1)
    with stream:
        next(stream)
        monkeypatch.setattr(BlockingFeed, "answers", True)
        monkeypatch.setattr(BlockingFeed, "begin", stall)
        with pytest.raises(Stalled, match="it stands still") as caught:
            next(stream)
        assert caught.value.position == stream.state_dict()  # not behind what is still ready


@pytest.mark.parametrize("look", range(4))
def test_damage_is_found_by_whoever_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    path = Path(write(tmp_path, ((9000,) * 9,)).replace("*", "00000"))
    data = bytearray(path.read_bytes())
    data[6 * 9016 + 20] ^= 1  # of the seventh record, large enough to be checked when decoded
    path.write_bytes(data)
    answers_at(monkeypatch, look)
    session = opened(str(path), batch_size=2)
    assert [len(session.receive()) for _ in range(3)] == [2, 2, 2]
    with pytest.raises(CorruptRecord) as caught:
        session.receive()
    assert caught.value.record == 6
    session.close()


def test_statistics_are_of_both(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nbytes = sum(path.stat().st_size for path in Path(source).parent.iterdir())
    answers_at(monkeypatch, 3)
    session = opened(source, batch_size=1)
    run_of(session)
    counts = session.statistics()
    assert counts["bytes_used"] == nbytes
    assert counts["bytes_read"] >= nbytes
    assert session._counted["bytes_used"] > 0
    assert counts["requests"] > session._counted["requests"]
    session.subscribe()
    run_of(session)
    assert session.statistics()["requests"] <= counts["requests"]
    session.close()


def test_the_facts_stay_the_same(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers_at(monkeypatch, 2)
    with sr.open(source, rank=0, world_size=1, batch_size=4, prefetch=1) as stream:
        before = stream.fingerprint, stream.shards
        assert sum(map(len, stream)) == TOTAL
        assert (stream.fingerprint, stream.shards) == before


@pytest.mark.parametrize(
    "values",
    [{"lanes": 2000}, {"lanes": 2000, "memory_budget": "256MiB"}, {"memory_budget": "8MiB"}],
)
def test_whatever_budget_is_accepted(source: str, values: dict[str, Any]) -> None:
    session = opened(source, **values)
    assert sum(map(len, run_of(session))) == TOTAL
    session.close()


def test_a_budget_that_is_too_small_is_refused_as_the_user_set_it(source: str) -> None:
    with pytest.raises(ConfigError, match="memory_budget of 32 MiB is too small"):
        opened(source, lanes=2000, memory_budget="32MiB")


@pytest.mark.parametrize(
    ("values", "warms"),
    [
        ({}, True),
        ({"compression": "gzip", "ordered": False, "steps_per_epoch": 3}, True),
        ({"shuffle": True}, True),
        ({"length_buckets": 4}, True),
        ({"filter": "tests.feeder.functions:keep"}, False),
        ({"map": "tests.feeder.functions:keep"}, False),
        ({"transform": "tests.feeder.functions:keep"}, False),
        ({"pack": sr.Pack(8)}, False),
        ({"on_corrupt": "skip", "corrupt_budget": 1}, False),
        ({"source": {"a": "x"}, "weights": {"a": 1.0}, "exhausted": "stop"}, False),
    ],
)
def test_what_is_warm_started(values: dict[str, Any], *, warms: bool) -> None:
    assert can_warm_start(settings(**{"source": "x", **values})) is warms


def test_whoever_asks_for_the_process_has_it_alone(
    source: str, started_threads: Callable[[], set[str]]
) -> None:
    with sr.open(source, rank=0, world_size=1, batch_size=4, engine="process") as stream:
        assert isinstance(stream._session, BlockingFeed)
        assert "streamrec-bridge" not in started_threads()
        assert sum(map(len, stream)) == TOTAL
