from __future__ import annotations

import asyncio
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pytest

import streamrec as sr
from streamrec.errors import (
    ConfigError,
    CorruptRecord,
    FeederLost,
    MalformedPosition,
    ObjectNotFound,
    OtherDataset,
    OtherOrder,
    WrongFeatureType,
)
from streamrec.formats.shards.tfrecord import frame
from streamrec.streams.loops import ComingSession
from streamrec.streams.stream import take
from tests.by_day import at_night, stops
from tests.pipeline.small_datasets import identities, write, write_index
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from streamrec.streams.stream import Stream


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return sr.open(write(tmp_path, ((20,) * 5,)), batch_size=1, engine="thread")


def steps(batches: list[Any]) -> list[int]:
    return [batch.next_position.step for batch in batches]


def test_so_many_and_none_behind_them(stream: Stream) -> None:
    with stream:
        assert steps(list(take(stream, 2))) == [1, 2]
        assert stream.state_dict()["step"] == 2
        assert steps(list(stream)) == [3, 4, 5]


def test_each_loop_takes_as_many_again(stream: Stream) -> None:
    two = take(stream, 2)
    with stream:
        assert [steps(list(two)) for _ in range(3)] == [[1, 2], [3, 4], [5]]
        assert steps(list(two)) == [6, 7], "of the next run"


def test_none_starts_nothing(stream: Stream) -> None:
    assert list(take(stream, 0)) == []
    assert "closed" in repr(stream)
    with stream:
        list(stream)
        list(take(stream, 0))
        assert "ended" in repr(stream)


def test_in_asyncio(stream: Stream) -> None:
    async def main() -> list[list[int]]:
        async with stream:
            return [steps([batch async for batch in take(stream, count)]) for count in (0, 2, 9, 1)]

    assert asyncio.run(main()) == [[], [1, 2], [3, 4, 5], [6]]


def test_a_loop_may_leave_early(stream: Stream) -> None:
    with stream:
        for _ in take(stream, 4):
            break
        assert stream.state_dict()["step"] == 1


def first_of_an_event_loop(stream: Stream) -> Any:
    """Take a batch in an event loop, which has ended when this returns."""

    async def first() -> Any:
        return await anext(stream)

    return asyncio.run(first())


def test_next_and_peek_go_on_after_an_event_loop_has_ended(stream: Stream) -> None:
    assert steps([first_of_an_event_loop(stream)]) == [1]
    assert steps([next(stream)]) == [2]
    stream.close()
    stream.rewind()
    assert steps([first_of_an_event_loop(stream)]) == [1]
    assert steps(stream.peek()) == [2]
    stream.close()


def test_a_prefetch_begins_after_an_event_loop_has_ended(stream: Stream) -> None:
    assert steps([first_of_an_event_loop(stream)]) == [1]
    stream.prefetch()
    assert isinstance(stream._session, ComingSession)
    assert steps([next(stream)]) == [2]
    stream.close()


def test_a_failed_prefetch_is_tried_again(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ObjectNotFound("not yet there")

    with monkeypatch.context() as patched:
        patched.setattr("streamrec.streams.session_owner.start", fail)
        stream.prefetch()
        with pytest.raises(ObjectNotFound, match="not yet there"):
            next(stream)
    assert steps([next(stream)]) == [1]
    stream.close()


def test_less_than_none(stream: Stream) -> None:
    with pytest.raises(ConfigError, match="count is -2; give a number"):
        take(stream, -2)


def test_says_what_it_takes(stream: Stream) -> None:
    assert repr(take(stream, 3)).startswith("<the next 3 of <Stream of ")


SHARDS = ((40,) * 13, (), (30,) * 8, (500,) * 5)
TOTAL = 26
KILLED, INTERRUPTED = "os.kill(os.getpid(), 9)", "raise KeyboardInterrupt"
EXAMPLES = {"id": sr.FixedLenFeature((), "int64"), "name": sr.FixedLenFeature((), bytes)}


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write(tmp_path / "raw", SHARDS)


@pytest.fixture
def examples(tmp_path: Path) -> str:
    records = [sr.encode_example({"id": i, "name": f"n{i}"}) for i in range(10)]
    (tmp_path / "examples.tfrecord").write_bytes(b"".join(map(frame, records)))
    return str(tmp_path / "examples.tfrecord")


def raw(source: str, **settings: Any) -> Stream:
    return sr.open(source, **{"batch_size": 4, "shuffle": True, "shuffle_window": 300, **settings})


def test_users_are_shown_few_members() -> None:
    """What adapters need besides is the handle's; the page of the API prints these."""
    assert [name for name in dir(sr.Stream) if not name.startswith("_")] == [
        "aclose",
        "askip",
        "close",
        "epoch",
        "fingerprint",
        "load_state_dict",
        "peek",
        "prefetch",
        "report_to",
        "restart",
        "rewind",
        "seek",
        "set_epoch",
        "set_weights",
        "shards",
        "skip",
        "state_dict",
        "statistics",
        "surplus",
    ]


def taken_by_for(stream: Stream, most: int | None = None) -> list[Any]:
    out = []
    for item in stream:
        out.append(item)
        if len(out) == most:
            break
    return out


def taken_by_async_for(stream: Stream, most: int | None = None) -> list[Any]:
    async def take() -> list[Any]:
        out = []
        async with stream:
            async for item in stream:
                out.append(item)
                if len(out) == most:
                    break
        return out

    return asyncio.run(take())


ENGINES: dict[str, tuple[dict[str, Any], Callable[..., list[Any]]]] = {
    "process": ({}, taken_by_for),
    "thread": ({"engine": "thread"}, taken_by_for),
    "loop": ({}, taken_by_async_for),
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Callable[..., list[Any]]]:
    return ENGINES[request.param]


class TestEveryEngine:
    @pytest.mark.both_kernels
    def test_delivers_the_same_batches(self, source: str, engine: Any) -> None:
        settings, take = engine
        reference = taken_by_async_for(raw(source))
        batches = take(raw(source, **settings))
        assert identities(batches) == identities(reference)
        assert [b.next_position for b in batches] == [b.next_position for b in reference]
        assert sum(map(len, batches)) == TOTAL

    def test_resumes_exactly_from_every_k(self, source: str, engine: Any) -> None:
        settings, take = engine
        whole = taken_by_async_for(raw(source))
        for k in stops(range(len(whole) + 1)):
            first = raw(source, **settings)
            head = take(first, k) if k else []
            state = json.loads(json.dumps(first.state_dict()))
            first.close()
            second = raw(source, **settings)
            second.load_state_dict(state)
            assert identities(head + take(second)) == identities(whole)
            second.close()

    def test_single_records_resume_exactly(self, source: str, engine: Any) -> None:
        settings, take = engine
        whole = taken_by_async_for(raw(source, batch_size=None))
        assert len(whole) == TOTAL
        assert isinstance(whole[0], bytes)
        first = raw(source, batch_size=None, **settings)
        head = take(first, 7)
        state = first.state_dict()
        first.close()
        assert state["step"] == 7
        second = raw(source, batch_size=None, **settings)
        second.load_state_dict(state)
        middle = take(second, 5)
        third = raw(source, batch_size=None, **settings)
        third.load_state_dict(second.state_dict())
        second.close()
        assert head + middle + take(third) == whole
        third.close()

    def test_iterating_again_is_the_next_epoch(self, source: str, engine: Any) -> None:
        settings, take = engine
        two = taken_by_async_for(raw(source, epochs=2, batch_size=1))
        stream = raw(source, batch_size=1, **settings)
        epochs = [take(stream), take(stream)]
        assert [batch.epoch for batch in epochs[1]] == [1] * TOTAL
        assert sorted(identities(epochs[0])) == sorted(identities(epochs[1]))
        assert identities(epochs[0]) != identities(epochs[1])
        assert sorted(identities(epochs[0] + epochs[1])) == sorted(identities(two))
        assert stream.epoch == 2
        stream.close()

    def test_after_a_break_it_goes_on(self, source: str, engine: Any) -> None:
        settings, take = engine
        stream = raw(source, **settings)
        parts = [take(stream, 2), take(stream, 1), take(stream)]
        assert identities([batch for part in parts for batch in part]) == identities(
            taken_by_async_for(raw(source))
        )
        stream.close()

    @pytest.mark.both_kernels
    def test_examples_become_columns(self, examples: str, engine: Any) -> None:
        settings, take = engine
        stream = sr.open(examples, EXAMPLES, batch_size=4, **settings)
        batches = take(stream)
        assert [batch["id"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert batches[0]["name"].to_list() == [b"n0", b"n1", b"n2", b"n3"]
        assert batches[0]["id"].flags.writeable
        stream.close()

    @pytest.mark.both_kernels
    def test_single_examples_are_mappings(self, examples: str, engine: Any) -> None:
        settings, take = engine
        stream = sr.open(examples, EXAMPLES, **settings)
        assert take(stream, 2) == [{"id": 0, "name": b"n0"}, {"id": 1, "name": b"n1"}]
        stream.close()

    @pytest.mark.both_kernels
    def test_features_are_inferred(self, examples: str, engine: Any) -> None:
        settings, take = engine
        stream = sr.open(examples, "infer", batch_size=10, **settings)
        (batch,) = take(stream)
        assert sorted(batch) == ["id", "name"]
        stream.close()

    @pytest.mark.both_kernels
    def test_errors_keep_their_type_and_fields(self, source: str, engine: Any) -> None:
        settings, take = engine
        missing = sr.open(source.replace("part-", "none-"), **settings)
        with pytest.raises(ObjectNotFound, match="none-"):
            take(missing)
        path = Path(source.replace("*", "00003"))
        data = bytearray(path.read_bytes())
        data[516 + 20] ^= 4
        path.write_bytes(data)
        with pytest.raises(CorruptRecord) as caught:
            take(raw(source, **settings))
        assert (caught.value.url, caught.value.offset, caught.value.record) == (str(path), 516, 1)

    @pytest.mark.both_kernels
    def test_a_wrong_dtype_names_record_and_feature(self, examples: str, engine: Any) -> None:
        settings, take = engine
        wrong = {"id": sr.FixedLenFeature((), "float32")}
        with pytest.raises(WrongFeatureType) as caught:
            take(sr.open(examples, wrong, batch_size=4, **settings))
        error = caught.value
        assert (error.url, error.record, error.feature) == (examples, 0, "id")

    def test_a_state_of_another_order_or_dataset_is_refused(
        self, source: str, tmp_path: Path, engine: Any
    ) -> None:
        settings, take = engine
        state = taken_by_async_for(raw(source), 1)[0].next_position.to_dict()
        other = raw(source, seed=5, **settings)
        other.load_state_dict(state)
        with pytest.raises(OtherOrder, match="seed was 0 and is 5"):
            take(other)
        elsewhere = raw(write(tmp_path / "other", ((3,) * 4,) * 5), **settings)
        elsewhere.load_state_dict(state)
        with pytest.raises(OtherDataset):
            take(elsewhere)


class TestState:
    def test_the_beginning_has_a_state_too(self, source: str) -> None:
        stream = raw(source)
        assert stream.state_dict() == {"version": 3, "step": 0}
        again = raw(source)
        again.load_state_dict(stream.state_dict())
        assert len(identities(taken_by_async_for(again))) == TOTAL

    def test_the_end_of_an_epoch_and_after_it(self, source: str) -> None:
        """Saved with the last batch, the loop ends at once; after it, the next epoch comes."""
        batches = taken_by_async_for(raw(source))
        at_the_end = raw(source)
        at_the_end.load_state_dict(batches[-1].next_position.to_dict())
        assert taken_by_async_for(at_the_end) == []
        assert [b.epoch for b in taken_by_async_for(at_the_end)] == [1] * len(batches)
        whole = raw(source)
        taken_by_async_for(whole)
        after = raw(source)
        after.load_state_dict(whole.state_dict())
        assert after.epoch == 1
        assert {b.epoch for b in taken_by_async_for(after)} == {1}

    @pytest.mark.parametrize("state", [[], {"version": 3, "step": -3}, {"nonsense": 1}, [{}]])
    def test_nonsense_is_refused_at_once(self, source: str, state: Any) -> None:
        with pytest.raises(MalformedPosition):
            raw(source).load_state_dict(state)

    def test_states_of_all_ranks_serve_another_world_size(self, source: str) -> None:
        settings = {"lanes": 4, "epochs": None}
        halves = [
            taken_by_async_for(raw(source, rank=rank, world_size=2, batch_size=2, **settings), 3)
            for rank in range(2)
        ]
        whole = taken_by_async_for(raw(source, **settings), 6)
        stream = raw(source, **settings)
        stream.load_state_dict([half[-1].next_position.to_dict() for half in halves])
        assert stream.state_dict()["world_size"] == 1
        assert identities(taken_by_async_for(stream, 3)) == identities(whole[3:])

    def test_pickled_in_the_middle(self, source: str) -> None:
        stream = raw(source, engine="thread")
        head = taken_by_for(stream, 3)
        copy = pickle.loads(pickle.dumps(stream))
        assert identities(taken_by_for(copy)) == identities(taken_by_for(stream))
        assert len(identities(head)) == 12
        copy.close()
        stream.close()


class TestFacts:
    def test_what_a_stream_tells(self, source: str) -> None:
        stream = raw(source, engine="thread")
        assert repr(stream) == f"<Stream of {source}, closed, step 0>"
        with pytest.raises(ConfigError, match="not open"):
            _ = stream.fingerprint
        with stream:
            taken_by_for(stream, 2)
            assert repr(stream) == f"<Stream of {source}, open, step 2>"
            assert len(stream.shards) == 4
            assert stream.fingerprint.lanes == 4
            statistics = stream.statistics()
            assert (statistics["batches"], statistics["records"]) == (2, 8)
            assert statistics["bytes_read"] > 0
        assert repr(stream) == f"<Stream of {source}, closed, step 2>"

    def test_in_a_notebook(self, source: str) -> None:
        with raw(source, engine="thread") as stream:
            next(stream)
            table = stream._repr_html_()
        assert "<td style='text-align:left'>0 of 1</td>" in table
        assert "step" in table

    def test_the_fingerprint_does_not_depend_on_who_reads(self, source: str) -> None:
        with raw(source) as by_process, raw(source, engine="thread") as by_thread:
            assert by_process.fingerprint == by_thread.fingerprint

    def test_wrong_settings_are_refused_at_once(self, source: str) -> None:
        with pytest.raises(ConfigError, match="did you mean 'shuffle'"):
            sr.open(source, shufle=True)  # type: ignore[call-overload]
        with pytest.raises(ConfigError, match="lable"):
            sr.open(source, {"lable": "int46"})
        with pytest.raises(ConfigError, match="tcp://"):
            sr.connect("feeder:7070")

    def test_more_names_than_a_feeder_tells(
        self, source: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with raw(source, engine="thread") as stream:
            told = {"shards": None, "shard_count": 4}
            monkeypatch.setattr(stream._session, "settings", told)
            with pytest.raises(ConfigError, match="the names of 4 shards are too long"):
                _ = stream.shards

    def test_memory_is_read_by_a_thread(self) -> None:
        with fsspec.open("memory://tests/one.tfrecord", "wb") as file:
            file.write(frame(b"here"))
        stream = sr.open("memory://tests/one.tfrecord")
        assert list(stream) == [b"here"]
        stream.close()
        with pytest.raises(ConfigError, match='engine="thread"'):
            list(sr.open("memory://tests/one.tfrecord", engine="process"))


def engine_processes() -> set[int]:
    """Return the processes of all engines that this process started."""
    found = set()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            words = (directory / "cmdline").read_bytes().split(b"\0")
            parent = (directory / "stat").read_text().rsplit(")", 1)[1].split()[1]
        except OSError:
            continue
        if b"streamrec.feeder.engine.engine_process" in words and int(parent) == os.getpid():
            found.add(int(directory.name))
    return found


def until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        os.sched_yield()
    return True


class TestLeavesNothingBehind:
    @pytest.fixture(autouse=True)
    def _nothing_new(self) -> Iterator[None]:
        threads, engines = set(threading.enumerate()), engine_processes()
        yield
        gc.collect()
        assert until(lambda: engine_processes() <= engines)
        assert until(lambda: set(threading.enumerate()) <= threads)

    @pytest.mark.parametrize("settings", [{}, {"engine": "thread"}])
    def test_a_dropped_stream(self, source: str, settings: dict[str, Any]) -> None:
        for batch in raw(source, **settings):
            assert len(batch) == 4
            break

    @pytest.mark.parametrize("settings", [{}, {"engine": "thread"}])
    @pytest.mark.parametrize("ahead", [0, at_night(1), 99])
    def test_a_dropped_stream_that_has_ended(
        self, source: str, settings: dict[str, Any], ahead: int
    ) -> None:
        stream = raw(source, **settings)
        stream.peek(ahead)
        assert len(list(stream)) > 2

    @pytest.mark.parametrize("settings", [{}, {"engine": "thread"}])
    def test_an_error_in_the_loop(self, source: str, settings: dict[str, Any]) -> None:
        def train() -> None:
            with raw(source, **settings) as stream:
                for _ in stream:
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            train()

    def test_async_for_without_a_block(self, source: str) -> None:
        async def main() -> int:
            async for batch in raw(source):
                return len(batch)
            return 0

        assert asyncio.run(main()) == 4
        assert asyncio.run(main(), debug=True) == 4

    @asynchronous
    async def test_a_stream_dropped_in_a_loop_that_goes_on(self, source: str) -> None:
        async for _ in raw(source):
            break
        gc.collect()
        ours = [t for t in asyncio.all_tasks() if t.get_name().startswith("streamrec")]
        await asyncio.wait_for(asyncio.wait(ours), 60)

    @asynchronous
    async def test_a_cancelled_consumer(self, source: str) -> None:
        async def consume() -> None:
            async with raw(source, epochs=None) as stream:
                async for _ in stream:
                    await asyncio.sleep(0)

        task = asyncio.create_task(consume())
        for _ in range(50):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        names = {other.get_name() for other in asyncio.all_tasks()}
        assert not any(name.startswith("streamrec") for name in names)


class TestProcesses:
    def test_a_killed_engine_is_an_error_with_the_position(self, source: str) -> None:
        before = engine_processes()
        stream = raw(source, epochs=None, engine="process")
        head = taken_by_for(stream, 3)
        (engine,) = engine_processes() - before
        os.kill(engine, signal.SIGKILL)
        rest: list[Any] = []
        with pytest.raises(FeederLost, match=r"signal 9|SIGKILL|killed") as caught:
            rest.extend(stream)
        assert caught.value.position == stream.state_dict()
        stream.close()
        again = raw(source, epochs=None)
        assert caught.value.position is not None
        again.load_state_dict(caught.value.position)
        delivered = head + rest
        tail = taken_by_for(again, 2)
        again.close()
        whole = taken_by_async_for(raw(source, epochs=None), len(delivered) + 2)
        assert identities(delivered + tail) == identities(whole)

    @pytest.mark.parametrize(
        ("end", "engine"),
        [
            ("pass", None),
            ("pass", "process"),
            (KILLED, None),
            at_night(KILLED, "process"),
            (INTERRUPTED, None),
            at_night(INTERRUPTED, "process"),
        ],
    )
    def test_the_training_process_ends_anyhow(
        self, source: str, end: str, engine: str | None
    ) -> None:
        """Without `with`: at a normal exit, a kill -9 and Ctrl-C the engine process is gone."""
        code = f"""
import os, streamrec as sr
from streamrec.streams.warm_start import TrainerClock
TrainerClock.is_busy = True
stream = sr.open({source!r}, batch_size=2, epochs=None, engine={engine!r})
next(stream)
next(stream)
feed = getattr(stream._session, "_feed", stream._session)
print(feed._engine.process.pid, flush=True)
{end}
"""
        result = subprocess.run(
            [sys.executable, "-c", code], check=False, capture_output=True, text=True
        )
        pid = int(result.stdout)
        assert until(lambda: not Path(f"/proc/{pid}").exists() or zombie(pid))
        assert "streamrec" not in result.stderr
        if end == "pass":
            assert (result.returncode, result.stderr) == (0, "")


def zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


@asynchronous
async def test_the_facts_of_a_dataset_are_gathered_once(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are as many as it has shards, and each batch asks for one of them."""
    gathered = []

    def ends(settings: Any) -> dict[str, Any]:
        gathered.append(settings)
        return {}

    monkeypatch.setattr("streamrec.feeder.client.welcome.ends", ends)
    async with raw(source) as stream:
        assert len([batch async for batch in stream]) > 5
    assert len(gathered) == 1


def test_an_empty_result_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "empty.tfrecord").touch()
    with sr.open(tmp_path / "empty.tfrecord", batch_size=2, engine="thread") as stream:
        assert [*stream, *stream] == []
    assert caplog.text.count("has ended without a record") == 1


@pytest.mark.parametrize("index", [None, True])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_dataloader_over_it_names_as_loader(
    source: str, index: bool | None, batch_size: int | None
) -> None:
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    if index:
        write_index(source, 100)
    for size in (None, 1):
        stream = raw(source, index=index, batch_size=batch_size, engine="thread")
        loader = data.DataLoader(stream, batch_size=size)
        for use in (len, lambda loader: next(iter(loader))):  # Lightning asks for the length first
            with pytest.raises(ConfigError, match=r"streamrec\.adapters\.torch\.as_loader"):
                use(loader)
        with pytest.raises(ConfigError, match=r"streamrec\.adapters\.torch\.as_loader"):
            data.DataLoader(stream, batch_size=size, shuffle=True)
