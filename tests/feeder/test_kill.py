"""Feeders, engine processes and trainers are killed again and again: no rank notices in its data.

tests/README.md has the command for the long form.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.errors import FeedError
from streamrec.feeder.access.access import Certificates
from streamrec.feeder.client import healing
from streamrec.flow.child_process import ChildProcess
from streamrec.streams.warm_start import TrainerClock
from tests.by_day import at_night, each_once, is_day
from tests.feeder.certificates import Authority
from tests.feeder.proxy import Proxy
from tests.interrupts import Interrupted, interrupted_at
from tests.pipeline.small_datasets import write_index

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamrec.config.keywords import Engine
    from streamrec.streams.stream import Stream

EVENTS = int(os.environ.get("STREAMREC_TEST_KILLS", "6" if is_day() else "10"))
SEED = int(os.environ.get("STREAMREC_TEST_SEED", "7"))
RANKS = 4
STEPS_BETWEEN = 3
SETTINGS: dict[str, Any] = {
    "lanes": 8,
    "batch_size": 8,
    "shuffle": True,
    "shuffle_window": 1 << 18,
    "seed": 3,
    "epochs": 1000,
    "steps_per_epoch": 40,
    "memory_budget": 32 << 20,
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write a few MB, so that several batches of each rank are in flight at any time."""
    directory = tmp_path_factory.mktemp("kill")
    blobs = np.random.default_rng(1)
    for shard in range(16):
        with sr.TFRecordWriter(directory / f"part-{shard:05}.tfrecord") as writer:
            for record in range(60 + shard):
                writer.write(b"%d/%d|" % (shard, record) + blobs.bytes(4000))
    write_index(f"{directory}/part-*.tfrecord", 40_000)
    return f"{directory}/part-*.tfrecord"


def name_of(record: bytes) -> bytes:
    return record.partition(b"|")[0]


def undisturbed(
    source: str, rank: int, steps: int, differing: dict[str, Any] | None = None
) -> list[bytes]:
    settings = {**SETTINGS, "engine": "thread", "rank": rank, "world_size": RANKS}
    settings |= differing or {}
    with sr.open(source, **settings) as stream:
        return [name_of(r) for batch in sr.take(stream, steps) for r in batch.records.to_list()]


class Feeders:
    """Two daemons over one dataset, each behind a proxy that troubles connections.

    The first one has two workers.

    Args:
        sources: The shards of each.
        settings: The settings of the dataset.
        directory: Their files.
        authority: The signer of the certificates with which the proxies speak TLS; ``None``: plain
            TCP.
        stack: Ends them.
    """

    def __init__(
        self,
        sources: tuple[str, str],
        settings: dict[str, Any],
        directory: Path,
        authority: Authority | None,
        stack: ExitStack,
    ) -> None:
        self._sources, self._settings = sources, settings
        self._directory, self._stack = directory, stack
        self.workers_killed = 0
        self._children = [self._start(number) for number in range(2)]
        context = Certificates(authority.server()).context if authority else None
        self._scheme = "tls" if authority else "tcp"
        self.proxies = [
            stack.enter_context(Proxy(self._path(number), context)) for number in range(2)
        ]

    @property
    def address(self) -> str:
        places = ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.proxies)
        return f"{self._scheme}://{places}/train"

    def end(self, how: signal.Signals, number: int) -> None:
        """End one of the two, and start another in its place; the other one may be down, too."""
        process = self._children[number].process
        process.send_signal(how)
        process.wait()
        self._children[number] = self._start(number)

    def kill_worker(self, number: int) -> None:
        """Kill a worker of the first one, which starts another in its place."""
        daemon = self._children[0].process.pid
        with suppress(OSError):  # the one that was killed before is gone in the midst of this
            for worker in children(daemon, "worker_process")[number : number + 1]:
                os.kill(worker, signal.SIGKILL)
                self.workers_killed += 1

    def cut(self, number: int) -> None:
        self.proxies[number].cut()

    def flip(self, number: int) -> None:
        """Change a byte of what one of them sends next."""
        self.proxies[number].flips = True

    def flip_hello(self, number: int) -> None:
        """Cut the connections of one of them, and change a byte of what the next client sends."""
        self.proxies[number].flips_hello = True
        self.cut(number)

    def freeze(self, number: int) -> None:
        """Hand on nothing more at one of the two; again at the other one."""
        self.proxies[1 - number].thaw()
        self.proxies[number].freeze()

    def _path(self, number: int) -> str:
        return str(self._directory / f"{number}.sock")

    def _start(self, number: int) -> ChildProcess:
        config = self._directory / f"{number}.toml"
        table = {**self._settings, "source": self._sources[number]}
        settings = "\n".join(f"{name} = {json.dumps(table[name])}" for name in table)
        config.write_text(
            f'[server]\nlisten = ["unix://{self._path(number)}"]\nstatus = ""\ngrace = 1\n'
            f"workers = {2 - number}\n"
            f"[datasets.train]\n{settings}"
        )
        arguments = ["streamrec", "serve", str(config), "--json"]
        return self._stack.enter_context(
            ChildProcess("feeder", arguments, config.with_suffix(".log"))
        )


class Trainer:
    """A rank that takes batches and, when a feed fails, goes on with another from the last one."""

    def __init__(self, opened: Callable[[int], Stream]) -> None:
        self.records: list[bytes] = []
        self.failures = 0
        self._opened = opened
        self.stream = opened(0)

    def step(self, interrupt_at: int | None = None) -> None:
        while True:
            try:
                batch = self._next(interrupt_at)
            except Interrupted:
                interrupt_at = None
            except FeedError as error:
                self.failures += 1
                state = self.stream.state_dict()
                assert error.position == (state if self.records else None)
                self.begin_anew()
            else:
                self.records += map(name_of, batch.records.to_list())
                return

    def begin_anew(self) -> None:
        """Go on from the state as it is written to a checkpoint."""
        state = json.loads(json.dumps(self.stream.state_dict()))
        self.stream.close()
        self.stream = self._opened(self.failures)
        self.stream.load_state_dict(state)

    def _next(self, interrupt_at: int | None) -> Any:
        if interrupt_at is None:
            return next(self.stream)
        with interrupted_at(interrupt_at):
            return next(self.stream)


def train(trainers: Sequence[Trainer], event: Callable[[], None], random: Random) -> int:
    """Take batches in lockstep, with events between; the number of steps."""
    steps = 0
    for _ in range(EVENTS):
        event()
        for _ in range(random.randrange(1, 2 * STEPS_BETWEEN)):
            steps += 1
            for trainer in trainers:
                trainer.step(random.randrange(400) if not random.randrange(40) else None)
    return steps


def held_against(
    source: str,
    trainers: Sequence[Trainer],
    steps: int,
    differing: dict[str, Any] | None = None,
) -> None:
    for rank, trainer in enumerate(trainers):
        trainer.stream.close()
        assert trainer.records == undisturbed(source, rank, steps, differing), f"rank {rank}"


# An interrupt between the making of a coroutine and its hand-over to a loop: nothing has begun.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*never awaited"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.timeout(60 + 10 * EVENTS),
]


class Unaware(Trainer):
    """A rank that takes batches, and does nothing about failures."""

    longest_gap = 0.0
    """The most seconds that it waited for a batch."""

    def step(self, interrupt_at: int | None = None) -> None:
        began = time.monotonic()
        self.records += map(name_of, next(self.stream).records.to_list())
        self.longest_gap = max(self.longest_gap, time.monotonic() - began)


ORDERS: dict[str, dict[str, Any]] = {
    "by shard": {},
    "by record": {"index": True, "steps_per_epoch": None},
}


@pytest.mark.parametrize(
    ("order", "with_copies", "with_tls"), each_once(list(ORDERS), [False, True], [False, True])
)
def test_feeders_are_killed(
    order: str,
    with_copies: bool,
    with_tls: bool,
    source: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(healing, "PATIENCE", 1.0)
    random = Random(SEED)
    settings = {**SETTINGS, **ORDERS[order]}
    settings = {name: value for name, value in settings.items() if value is not None}
    sources = source, _copied(source, tmp_path / "copy") if with_copies else source
    authority = Authority(tmp_path) if with_tls else None
    with ExitStack() as stack:
        feeders = Feeders(sources, settings, tmp_path, authority, stack)

        def connected(rank: int, _: int) -> Stream:
            return sr.connect(
                feeders.address,
                rank=rank,
                world_size=RANKS,
                connect_timeout=1,
                engine="thread" if rank % 2 else None,
                tls={"ca": authority.file} if authority else None,
            )

        trainers = [Unaware(partial(connected, rank)) for rank in range(RANKS)]
        events: list[Callable[[int], None]] = [
            partial(feeders.end, signal.SIGKILL),
            partial(feeders.end, signal.SIGTERM),
            feeders.kill_worker,
            feeders.cut,
            feeders.freeze,
            feeders.flip,
            feeders.flip_hello,
            lambda _: trainers[random.randrange(RANKS)].begin_anew(),
        ]

        def event() -> None:
            random.choice(events)(random.randrange(2))

        steps = train(trainers, event, random)
        held_against(source, trainers, steps, ORDERS[order])
        gaps = ", ".join(f"{trainer.longest_gap:.2f} s" for trainer in trainers)
        print(f"{EVENTS} events, {steps} steps; the longest wait for a batch of each rank: {gaps}")
        assert sum(proxy.accepted for proxy in feeders.proxies) >= RANKS + EVENTS // 4


def _copied(source: str, directory: Path) -> str:
    shutil.copytree(Path(source).parent, directory)
    return f"{directory}/part-*.tfrecord"


@pytest.mark.parametrize("engine", ["process", at_night(None)])
def test_engine_processes_are_killed(
    source: str, engine: Engine | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainerClock, "is_busy", True)
    random = Random(SEED)
    killed: list[int] = []

    def opened(rank: int, _: int) -> Stream:
        settings = {**SETTINGS, "rank": rank, "world_size": RANKS}
        return sr.open(source, engine=engine, **settings)

    trainers = [Trainer(partial(opened, rank)) for rank in range(RANKS)]

    def event() -> None:
        processes = children(os.getpid(), "engine_process")
        if random.randrange(3) and processes:
            killed.append(random.choice(processes))
            os.kill(killed[-1], signal.SIGKILL)
        else:
            trainers[random.randrange(RANKS)].begin_anew()

    held_against(source, trainers, train(trainers, event, random))
    assert killed


def children(pid: int, module: str) -> list[int]:
    """Return the children of a process that run a module."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    pids = sorted(int(child) for task in tasks for child in task.read_text().split())
    return [pid for pid in pids if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]
