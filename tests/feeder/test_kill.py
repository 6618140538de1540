"""Feeders, engine processes and trainers are killed again and again: no rank notices in its data.

tests/README.md has the command for the long form.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.demo.processes import Child
from streamrec.errors import FeedError
from tests.by_day import is_day
from tests.interrupts import Interrupted, interrupted_at

if TYPE_CHECKING:
    from collections.abc import Callable

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
    return f"{directory}/part-*.tfrecord"


def name_of(record: bytes) -> bytes:
    return record.partition(b"|")[0]


def undisturbed(source: str, rank: int, steps: int) -> list[bytes]:
    settings = {**SETTINGS, "engine": "thread", "rank": rank, "world_size": RANKS}
    with sr.open(source, **settings) as stream:
        return [name_of(r) for batch in sr.take(stream, steps) for r in batch.records.to_list()]


class Feeders:
    """Two daemons over one dataset; one of them at least is always up."""

    def __init__(self, source: str, directory: Path, stack: ExitStack) -> None:
        table = {**SETTINGS, "source": source}
        lines = [f"{name} = {json.dumps(value)}" for name, value in table.items()]
        self._config = directory / "feeder.toml"
        self._config.write_text(
            '[server]\nlisten = ["tcp://127.0.0.1:0"]\nstatus = ""\ngrace = 1\n'
            "[datasets.train]\n" + "\n".join(lines)
        )
        self._stack = stack
        self._children = [self._start(number) for number in range(2)]
        self._addresses: list[str | None] = [None, None]

    def address(self, turn: int) -> str:
        """Return the address for a client that has failed so often; the other one may be down."""
        number = turn % 2
        if self._addresses[number] is None:
            self._addresses[number] = self._children[number].ready()["listen"][0]
        return f"{self._addresses[number]}/train"

    def end(self, number: int, how: signal.Signals) -> None:
        """End one of the two, and start another in its place, as soon as the other one is up."""
        self.address(1 - number)
        self._children[number].process.send_signal(how)
        self._children[number].process.wait()
        self._children[number] = self._start(number)
        self._addresses[number] = None

    def _start(self, number: int) -> Child:
        arguments = ["streamrec", "serve", str(self._config), "--until-eof", "--json"]
        log = self._config.with_name(f"feeder-{number}.log")
        return self._stack.enter_context(Child("feeder", arguments, log))


class Trainer:
    """A rank that takes batches and, when a feed fails, goes on elsewhere from the last one."""

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


def train(trainers: list[Trainer], event: Callable[[], None], random: Random) -> int:
    """Take batches in lockstep, with events between; the number of steps."""
    steps = 0
    for _ in range(EVENTS):
        event()
        for _ in range(random.randrange(1, 2 * STEPS_BETWEEN)):
            steps += 1
            for trainer in trainers:
                trainer.step(random.randrange(400) if not random.randrange(40) else None)
    return steps


def held_against(source: str, trainers: list[Trainer], steps: int) -> None:
    for rank, trainer in enumerate(trainers):
        trainer.stream.close()
        assert trainer.records == undisturbed(source, rank, steps), f"rank {rank}"


# An interrupt between the making of a coroutine and its hand-over to a loop: nothing has begun.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*never awaited"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.timeout(60 + 10 * EVENTS),
]


def test_feeders_are_killed(source: str, tmp_path: Path) -> None:
    random = Random(SEED)
    with ExitStack() as stack:
        feeders = Feeders(source, tmp_path, stack)

        def connected(rank: int, failures: int) -> Stream:
            return sr.connect(feeders.address(rank + failures), rank=rank, world_size=RANKS)

        trainers = [Trainer(partial(connected, rank)) for rank in range(RANKS)]

        def event() -> None:
            kind = random.randrange(3)
            if kind == 0:
                trainers[random.randrange(RANKS)].begin_anew()
            else:
                ending = signal.SIGKILL if kind == 1 else signal.SIGTERM
                feeders.end(random.randrange(2), ending)

        steps = train(trainers, event, random)
        held_against(source, trainers, steps)
    assert sum(trainer.failures for trainer in trainers) >= EVENTS // 10


@pytest.mark.parametrize("engine", ["process", None])
def test_engine_processes_are_killed(source: str, engine: Engine | None) -> None:
    random = Random(SEED)
    killed: list[int] = []

    def opened(rank: int, _: int) -> Stream:
        settings = {**SETTINGS, "rank": rank, "world_size": RANKS}
        return sr.open(source, engine=engine, **settings)

    trainers = [Trainer(partial(opened, rank)) for rank in range(RANKS)]

    def event() -> None:
        processes = engine_processes()
        if random.randrange(3) and processes:
            killed.append(random.choice(processes))
            os.kill(killed[-1], signal.SIGKILL)
        else:
            trainers[random.randrange(RANKS)].begin_anew()

    held_against(source, trainers, train(trainers, event, random))
    assert killed


def engine_processes() -> list[int]:
    """Return the children of this process that run the engine of a stream."""
    children = " ".join(task.read_text() for task in Path("/proc/self/task").glob("*/children"))
    pids = sorted(map(int, children.split()))
    return [pid for pid in pids if b"engine_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]
