"""Functions with random generators under kills: the same numbers as of a run that nothing ended.

tests/README.md has the command for the long form.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack, closing
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.errors import FeederLost
from streamrec.flow.child_process import ChildProcess
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.shards.tfrecord import frame
from tests.by_day import at_night, is_day
from tests.pipeline import user_functions
from tests.streams.test_stream import engine_processes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from signal import Signals

    from streamrec.streams.stream import Stream

KILLS = int(os.environ.get("STREAMREC_TEST_KILLS", "2" if is_day() else "50"))
SEED = int(os.environ.get("STREAMREC_TEST_SEED", "5"))
FEATURES = {"id": sr.FixedLenFeature((), "int64")}
NAMES = "id", "draw", "noise"
OWN = "tests.pipeline.user_functions"
FUNCTIONS: dict[str, Any] = {
    "filter": user_functions.is_drawn,
    "map": user_functions.with_draw,
    "transform": user_functions.with_noise,
}
PLAIN: dict[str, Any] = {
    "batch_size": 3,
    "lanes": 12,
    "seed": 7,
    "shuffle": True,
    "shuffle_window": 400,
    "epochs": 1000,
    "steps_per_epoch": 5,
    "memory_budget": "32MiB",
    "max_concurrency": 8,
}
"""Twelve lanes, which one to four ranks share."""
MOST = 60
"""Steps of a rank, over several epochs."""
RANKS = [at_night(1), 2, at_night(3), at_night(4)]


@pytest.fixture
def source(tmp_path: Path) -> str:
    for shard in range(4):
        records = [sr.encode_example({"id": 100 * shard + i}) for i in range(12)]
        (tmp_path / f"{shard}.tfrecord").write_bytes(b"".join(map(frame, records)))
    return f"{tmp_path}/*.tfrecord"


class Trainer:
    """A rank that counts its batches from 0, goes on when a feed is lost, and begins anew."""

    def __init__(self, stream: Stream, expected: list[Any]) -> None:
        self.stream, self.expected = stream, expected
        self._begin = stream.state_dict()
        self.step = 0

    def take(self, count: int) -> None:
        """Take batches, and compare each with that of the run that nothing ended."""
        for _ in range(count):
            if self.step == len(self.expected):
                self.stream.load_state_dict(json.loads(json.dumps(self._begin)))
                self.step = 0
            batch = self._next()
            assert self.row(batch) == self.expected[self.step]
            self.step += 1

    def _next(self) -> Any:
        while True:
            try:
                return next(self.stream)
            except FeederLost:
                self.stream.close()

    @staticmethod
    def row(batch: Any) -> Any:
        return list(zip(*(batch[name].tolist() for name in NAMES), strict=True))


def undisturbed(source: str, rank: int, world_size: int) -> list[Any]:
    where: dict[str, Any] = {"rank": rank, "world_size": world_size}
    with sr.open(source, FEATURES, **PLAIN, **FUNCTIONS, **where, engine="thread") as stream:
        return [Trainer.row(batch) for batch in sr.take(stream, MOST)]


def run(trainers: list[Trainer], kill: Callable[[Random], None]) -> None:
    """Let each rank take some batches, and kill, again and again."""
    random = Random(SEED)
    for _ in range(KILLS):
        for trainer in trainers:
            trainer.take(random.randrange(4))
        kill(random)
    for trainer in trainers:
        trainer.take(MOST)


def check_ranks(expected: list[list[Any]]) -> None:
    """Require other noise in each rank and epoch."""
    noises = [noise for rank in expected for batch in rank for *_, noise in batch]
    assert len(set(noises)) == len(noises)


@pytest.mark.parametrize("world_size", RANKS)
def test_engine_processes_are_killed(source: str, world_size: int) -> None:
    expected = [undisturbed(source, rank, world_size) for rank in range(world_size)]
    check_ranks(expected)
    with ExitStack() as stack:
        trainers = []
        for rank in range(world_size):
            where: dict[str, Any] = {"rank": rank, "world_size": world_size}
            stream = sr.open(source, FEATURES, **PLAIN, **FUNCTIONS, **where)
            trainers.append(Trainer(stack.enter_context(closing(stream)), expected[rank]))

        def kill(random: Random) -> None:
            running = sorted(engine_processes())
            if running:
                os.kill(random.choice(running), signal.SIGKILL)

        run(trainers, kill)


class Daemon:
    """A feeder in a process of its own, always at the same address."""

    def __init__(self, source: str, directory: Path, stack: ExitStack) -> None:
        names = {name: f"{OWN}:{function.__name__}" for name, function in FUNCTIONS.items()}
        table = {**PLAIN, **names, "source": source, "features": describe(FEATURES)}
        self.address = f"unix://{directory}/feeder.sock"
        self._config, self._stack = directory / "feeder.toml", stack
        self._config.write_text(
            f'[server]\nlisten = ["{self.address}"]\nstatus = ""\n[datasets.data]\n'
            + "\n".join(f"{name} = {toml(value)}" for name, value in table.items())
        )
        self._child = self._start()

    def kill(self, random: Random) -> None:
        how: Signals = random.choice([signal.SIGKILL, signal.SIGTERM])
        self._child.process.send_signal(how)
        self._child.process.wait()
        self._child = self._start()

    def _start(self) -> ChildProcess:
        arguments = ["streamrec", "serve", str(self._config), "--json"]
        return self._stack.enter_context(
            ChildProcess("feeder", arguments, self._config.with_suffix(".log"))
        )


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


@pytest.mark.parametrize("world_size", RANKS)
def test_feeders_are_killed(source: str, world_size: int, tmp_path: Path) -> None:
    expected = [undisturbed(source, rank, world_size) for rank in range(world_size)]
    with ExitStack() as stack:
        daemon = Daemon(source, tmp_path, stack)
        trainers = []
        for rank in range(world_size):
            stream = sr.connect(
                f"{daemon.address}#data", rank=rank, world_size=world_size, engine="thread"
            )
            trainers.append(Trainer(stack.enter_context(closing(stream)), expected[rank]))
        run(trainers, daemon.kill)
