from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from streamrec import kernel
from streamrec.config import DatasetSettings
from streamrec.errors import ConfigError, CorruptRecord, FeederLost, ObjectNotFound
from streamrec.feeder.client.client import ENGINE_DATASET, BlockingFeed
from streamrec.feeder.client.shared import Inbox
from streamrec.feeder.engine import engine as module
from streamrec.feeder.engine.engine import PIPE_BYTES, PROCESS, Engine, order_for
from streamrec.feeder.engine.engine_process import serve
from streamrec.flow.channel import EndOfStream
from streamrec.flow.child_process import (
    ENVIRONMENT_DEFAULTS,
    child_command,
)
from streamrec.pipeline.dataset import Dataset
from streamrec.wire.messages import Credit, Subscribe
from streamrec.wire.protocol import Role
from tests.by_day import at_night, stops
from tests.cancellation import cancel_in_every_turn
from tests.feeder.fake_dataset import FakeDataset, SlowlyClosedDataset
from tests.feeder.shards import write_shards
from tests.feeder.support import (
    PATIENCE,
    Scripted,
    eventually,
    gone,
    hello,
    in_simulated_time,
    until,
)
from tests.support import asynchronous, open_fds

if TYPE_CHECKING:
    from streamrec.feeder.client.session import State


DOUBLE = {"settings": {"source": "double"}, "objects": None, "functions": None}
"""An order for a dataset that a test opens in its own way."""


def settings(path: Path, records: int = 20, size: int = 0, **more: object) -> DatasetSettings:
    source = write_shards(path, shards=3, records=records, size=size)
    return DatasetSettings.model_validate({"source": source, "batch_size": 4, **more})


def fed(engine: Engine, position: State | None = None, **options: Any) -> BlockingFeed:
    feed = BlockingFeed.call(engine.socket, engine=engine, **options)
    feed.begin(position)
    return feed


def all_records(engine: Engine, position: State | None = None) -> list[bytes]:
    records: list[bytes] = []
    feed = fed(engine, position)
    try:
        while True:
            records += feed.receive().records.to_list()
    except EndOfStream:
        return records


A_WEEK = 7 * 24 * 3600
EXPECTED = [b"%d:%d" % (shard, record) for record in range(20) for shard in range(3)]


@pytest.mark.both_kernels
def test_delivers_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GOODBYE", PATIENCE)  # on a busy machine it ends late
    gc.collect()  # what the tests before have left
    before = open_fds()
    with closing(Engine.start(order_for(settings(tmp_path)))) as engine:
        pid = engine.process.pid
        assert all_records(engine) == EXPECTED
        assert str(pid) in repr(engine)
    assert gone(pid)
    assert engine.process.returncode == 0
    assert "exit code 0" in repr(engine)
    engine.close()
    until(lambda: open_fds() <= before)


def test_one_that_serves_nobody_can_be_ended_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "streamrec.feeder.engine.engine.GOODBYE", PATIENCE
    )  # it would end by itself
    engine = Engine.start(order_for(settings(tmp_path)))
    engine.close(at_once=True)
    assert engine.process.returncode == -signal.SIGKILL
    engine.close(at_once=True)


@pytest.mark.both_kernels
@pytest.mark.parametrize(
    ("shares", "keeps"), [(True, True), (True, False), (False, True), at_night(False, False)]
)
def test_what_the_trainer_keeps_stays_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, shares: bool, keeps: bool
) -> None:
    if not shares:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    views: list[int] = []
    view = Inbox.view

    def counted(inbox: Inbox, offset: int, size: int) -> memoryview:
        views.append(offset)
        return view(inbox, offset, size)

    monkeypatch.setattr(Inbox, "view", counted)
    # 2 MiB are 15 places of a batch. However slow the trainer is, of what it does not keep 12 are
    # taken at most: by a batch on its way, two with it, the one that was sent last, two that are
    # decoded, and the 768 KiB that wait.
    described = settings(tmp_path, records=40, size=33_000, memory_budget="8MiB")
    kept, found = [], []
    with closing(Engine.start(order_for(described))) as engine:
        feed = fed(engine, credit_bytes=1 << 16, shared_bytes=2 << 20)
        with contextlib.suppress(EndOfStream):
            while True:
                batch = feed.receive()
                kept += [batch] if keeps else []
                found += [] if keeps else batch.records.to_list()
    for batch in kept:
        found += batch.records.to_list()
    assert found == [
        b"%d:%d" % (shard, record) + bytes(33_000) for record in range(40) for shard in range(3)
    ]
    assert bool(views) == (shares and hasattr(os, "memfd_create"))
    # The kernel in Python has memory of its own, which is copied, all to one place.
    places = 60 if kernel.implementation == "native" else 30
    if shares and keeps:
        assert len(views) < places, "what did not fit came over the socket"
    if shares and not keeps:
        assert len(set(views)) < len(views) == places, "places are used again"


@pytest.mark.parametrize("steps", stops(range(0, 15, 3)))
def test_resumes_in_another_process(tmp_path: Path, steps: int) -> None:
    described = settings(tmp_path)
    records: list[bytes] = []
    with closing(Engine.start(order_for(described))) as engine:
        feed = fed(engine)
        for _ in range(steps):
            records += feed.receive().records.to_list()
        state = feed.position
    with closing(Engine.start(order_for(described))) as engine:
        assert records + all_records(engine, position=state) == EXPECTED


@in_simulated_time
async def test_a_trainer_may_take_its_time_in_every_state(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = FakeDataset(steps=2)

    async def opened(*_: object) -> FakeDataset:
        return dataset

    monkeypatch.setattr(Dataset, "open", opened)
    ours, theirs = socket.socketpair()
    serving = asyncio.create_task(serve(theirs, DOUBLE))
    with ours:
        trainer = Scripted(ours, Role.CLIENT)
        await asyncio.sleep(A_WEEK)
        trainer.say(hello(dataset=ENGINE_DATASET))
        await trainer.answer()
        for message in (Subscribe(0), Credit(1), Credit(1 << 20)):
            await asyncio.sleep(A_WEEK)
            trainer.say(message)
        await eventually(lambda: dataset.taken == 2)
    await serving


def test_errors_at_open_are_the_same(tmp_path: Path) -> None:
    missing = DatasetSettings(source=f"{tmp_path}/none-*.tfrecord", batch_size=4)
    with (
        closing(Engine.start(order_for(missing))) as engine,
        pytest.raises(ObjectNotFound, match="none-"),
    ):
        fed(engine)


def test_the_first_cause_arrives_with_its_place(tmp_path: Path) -> None:
    described = settings(tmp_path)
    shard = tmp_path / "shard-1.tfrecord"
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(data)
    with (
        closing(Engine.start(order_for(described))) as engine,
        pytest.raises(CorruptRecord) as caught,
    ):
        all_records(engine)
    assert caught.value.record == 19
    assert str(caught.value.url).endswith("shard-1.tfrecord")


def test_a_killed_engine_is_explained(tmp_path: Path) -> None:
    with closing(Engine.start(order_for(settings(tmp_path, epochs=None)))) as engine:
        feed = fed(engine, credit_bytes=1)
        feed.receive()
        engine.process.kill()
        with pytest.raises(FeederLost, match="was ended by SIGKILL") as caught:
            while True:
                feed.receive()
        assert caught.value.position == feed.position


def test_last_words_are_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    order = b"{}"
    with caplog.at_level(logging.WARNING), closing(Engine.start(order)) as engine:
        with pytest.raises(FeederLost, match="ended with exit code 1; its last output:") as caught:
            fed(engine)
        assert "KeyError: 'path'" in str(caught.value)
    assert "KeyError" in caplog.text


def test_a_child_that_never_reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    order = bytes(2 * PIPE_BYTES)
    with pytest.raises(FeederLost, match="exit code 0"):
        Engine.start(order)


def test_no_interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gc.collect()  # what the tests before have left
    before = open_fds()
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    with pytest.raises(ConfigError, match='engine="thread"'):
        Engine.start(order_for(settings(tmp_path)))
    until(lambda: open_fds() <= before)


def test_settings_that_cannot_be_sent(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give plain values in storage_options"):
        order_for(settings(tmp_path, storage_options={"session": object()}))


def test_secrets_are_no_arguments(tmp_path: Path) -> None:
    described = settings(tmp_path, storage_options={"auto_mkdir": "secret"})
    with closing(Engine.start(order_for(described))) as engine:
        path = Path(f"/proc/{engine.process.pid}/cmdline")
        until(lambda: bool(path.read_bytes()))
        arguments = path.read_bytes()
        assert PROCESS.encode() in arguments
        assert b"secret" not in arguments


def variables(process: int) -> dict[str, str]:
    """Return the environment that a process was started with."""
    pairs = Path(f"/proc/{process}/environ").read_text().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if pair)


@pytest.mark.parametrize("given", [None, "3"])
def test_no_threads_and_plugins_that_nobody_asked_for(
    given: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ENVIRONMENT_DEFAULTS:
        if given is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, given)
    with closing(Engine.start(order_for(settings(tmp_path)))) as engine:
        until(lambda: bool(variables(engine.process.pid)))
        found = variables(engine.process.pid)
    assert {name: found[name] for name in ENVIRONMENT_DEFAULTS} == dict.fromkeys(
        ENVIRONMENT_DEFAULTS, given or "1"
    )


def test_ctrl_c_does_not_reach_it(tmp_path: Path) -> None:
    with closing(Engine.start(order_for(settings(tmp_path)))) as engine:
        feed = fed(engine)
        assert os.getpgid(engine.process.pid) == engine.process.pid
        os.kill(engine.process.pid, signal.SIGINT)
        assert feed.receive().records.to_list() == EXPECTED[:4]


def test_a_stopped_engine_is_closed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GOODBYE", 0.01)
    engine = Engine.start(order_for(settings(tmp_path)))
    os.kill(engine.process.pid, signal.SIGSTOP)
    assert engine.diagnosis() is None
    engine.close()
    assert gone(engine.process.pid)


class Child:
    """A process that notes how long its end is waited for."""

    pid = 1

    def __init__(self, stdin: io.BytesIO | None) -> None:
        self.stdin = stdin
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> None:
        self.waits.append(timeout)

    def kill(self) -> None:
        pass


def test_a_child_without_settings_is_not_waited_for() -> None:
    told = io.BytesIO()
    told.close()
    for stdin, seconds in ((io.BytesIO(), 0), (told, module.GOODBYE), (None, module.GOODBYE)):
        child: Any = Child(stdin)
        with socket.socket() as ours:
            module._end(child, ours, io.BytesIO(), os.getpid())
        assert child.waits == [seconds, None]
        assert stdin is None or stdin.closed


def test_a_forgotten_engine_ends(tmp_path: Path) -> None:
    engine = Engine.start(order_for(settings(tmp_path)))
    pid = engine.process.pid
    del engine
    gc.collect()
    assert gone(pid)


def test_a_fork_does_not_end_its_parents_engine(tmp_path: Path) -> None:
    with closing(Engine.start(order_for(settings(tmp_path)))) as engine:
        feed = fed(engine)
        ours = engine.socket.dup()
        module._end(engine.process, ours, io.BytesIO(), os.getpid() + 1)
        engine.process.returncode = None
        assert feed.receive().records.to_list() == EXPECTED[:4]


PARENT = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have background jobs ignore it
from streamrec.config import DatasetSettings
from streamrec.feeder.client.client import BlockingFeed
from streamrec.feeder.engine.engine import Engine, order_for
engine = Engine.start(order_for(DatasetSettings(source=sys.argv[1], batch_size=4, epochs=None)))
feed = BlockingFeed.call(engine.socket, engine=engine)
feed.begin(None)
feed.receive()
holder = 0
if sys.argv[2] == "fork" and not (holder := os.fork()):
    time.sleep(600)
print(engine.process.pid, holder, flush=True)
if sys.argv[2] == "exit":
    sys.exit(0)
while True:
    feed.receive()
"""


@pytest.mark.parametrize("how", ["kill", "fork", "exit", "interrupt"])
def test_dies_with_its_parent(how: str, tmp_path: Path) -> None:
    source = settings(tmp_path).source
    command = [sys.executable, "-c", PARENT, str(source), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid, holder = map(int, parent.stdout.readline().split())
        if how != "exit":
            parent.send_signal(signal.SIGINT if how == "interrupt" else signal.SIGKILL)
            parent.wait()
        else:
            assert parent.wait() == 0
        try:
            until(lambda: gone(pid))
        finally:
            if holder:
                os.kill(holder, signal.SIGKILL)
        assert parent.stderr is not None
        said = parent.stderr.read()
        assert said.count(b"Traceback") == (how == "interrupt")


@asynchronous
async def test_cancelled_in_every_turn_it_closes_the_dataset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataset = SlowlyClosedDataset()

    async def opener(*_: object) -> SlowlyClosedDataset:
        return dataset

    monkeypatch.setattr(Dataset, "open", opener)
    ours, theirs = socket.socketpair()
    with ours:
        await cancel_in_every_turn(serve(theirs, DOUBLE), 5)
    assert dataset.closed


def test_an_orphan_does_not_begin(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    plain = settings(tmp_path).model_dump(mode="json")
    order = json.dumps({"settings": plain}).encode()
    command = child_command(PROCESS, 1, theirs.fileno())
    with ours, theirs:
        ended = subprocess.run(command, input=order, pass_fds=[theirs.fileno()], check=False)
    assert ended.returncode == 1
