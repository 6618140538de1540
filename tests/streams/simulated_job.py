"""Jobs of eight ranks that step together, in simulated time, one of which has a fault.

Each rank reads with the engine itself, from a simulated store, and looks at the others as
``stream.report_to`` does. ``python -m tests.streams.simulated_job [FAULT] [TRIALS] [SEED]`` plays
jobs and prints how many were judged right; without a fault's name jobs of all kinds.
"""

from __future__ import annotations

import asyncio
import math
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.errors import StoreUnavailable
from streamrec.flow import cleanup
from streamrec.flow.stages import TABLE, WaitClock
from streamrec.formats.shards.tfrecord import frame
from streamrec.pipeline.terms.memory_needs import Measures
from streamrec.streams.rank_watch import LastBeats, RankWatch, beats_of
from tests.pipeline.simulated_store import (
    InlineExecutor,
    SimulatedLoop,
    SimulatedStore,
    Trouble,
    set_executors,
)
from tests.pipeline.test_corners import dataset_over

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from streamrec.pipeline.run import Run

RANKS = 8
LANES = 16
RECORD, BATCH = 128 << 10, 8
"""Bytes of a record, and records of a batch: a MiB a step."""
STEP = 2.0
"""Seconds of a step."""
EVERY = 30.0
"""Seconds of a period, as of ``report_to`` by default."""
WARM = 60.0
"""Seconds before the fault begins."""
WITHIN = 60.0
"""Seconds after that in which the rank must be named."""

PIECE = 64 << 10
"""Bytes that come at once: few, else a slow disk is silent for so long that requests are cut."""
HICCUPS = 0.005
"""The part of healthy requests that stall for seconds."""
CHECKPOINT = 100
"""Steps after which rank 0 writes a checkpoint, while all others wait for it."""
MINUTES = 10.0
"""Minutes of a healthy job."""

FILE = frame(bytes(RECORD)) * 64
SHARDS = {f"s3://bucket/train-{number:05}": FILE for number in range(2 * LANES)}


class SlowExecutor(InlineExecutor):
    """An executor of one thread, each of whose works takes some simulated seconds."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        super().__init__()
        self._seconds = seconds
        self._free_at = 0.0

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        done = super().submit(*args, **kwargs)
        loop = asyncio.get_running_loop()
        self._free_at = max(self._free_at, loop.time()) + self._seconds()
        future: Future[Any] = type(done)()
        loop.call_at(self._free_at, lambda: future.set_result(done.result()))
        return future


def _now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class Fault:
    """The fault of one rank, or of a shard, from a moment on."""

    kind: str
    random: Random
    ranks: set[int]
    """The rank, or those that have read the slow shard."""
    shard: str = ""
    since: float = WARM

    def note_wait(self, rank: int, asked: float) -> None:
        """Note a wait for a batch: until the first of them, read-ahead hides a slow shard."""
        if rank in self.ranks and _now() >= asked + STEP / 2:
            self.since = min(self.since, asked)

    def is_on(self, rank: int) -> bool:
        return rank in self.ranks and _now() >= self.since

    def trouble(self, rank: int, url: str) -> Trouble | None:
        """Return the trouble of a request of a rank, if this fault gives it any."""
        if url == self.shard:
            return self._slow_shard(rank)
        if not self.is_on(rank):
            return None
        if self.kind == "throttled" and self.random.random() < 0.95:
            return Trouble(refused=StoreUnavailable("slow down", url=url, throttled=True))
        if self.kind == "slow disk":
            return Trouble(slowness=self.random.uniform(3200, 6400))
        return None

    def _slow_shard(self, rank: int) -> Trouble | None:
        if _now() < WARM:
            return None
        self.ranks.add(rank)
        stall, slowness = self.random.uniform(8, 12), self.random.uniform(800, 1600)
        return Trouble(stalls_after=0, stall=stall, slowness=slowness)

    def decoding(self) -> float:
        """Return the seconds for which the rank decodes a batch."""
        is_slow = self.kind in ("slow transform", "busy core") and _now() >= self.since
        return STEP * self.random.uniform(1.5, 3) if is_slow else 0.05 * STEP

    @property
    def words(self) -> tuple[str, ...]:
        """The words of which one must be in the sentence about it."""
        first, body = TABLE["first_byte"].noun, TABLE["body"].noun
        return {
            "slow shard": (f"from {self.shard}",),
            "throttled": (first, body),
            "slow disk": (body,),
            "slow transform": (TABLE["transform"].awaited,),
            "busy core": (TABLE["decode"].awaited,),
            "paused": ("has reported nothing",),
        }[self.kind]


FAULTS = ("slow shard", "throttled", "slow transform", "paused", "slow disk", "busy core")
HEALTHY = "healthy"


@dataclass
class MemoryBoard:
    """A board of ranks in one process."""

    rank: int
    places: dict[int, str]
    size: int = RANKS

    def write(self, text: str) -> None:
        self.places[self.rank] = text

    def read(self, rank: int) -> str | None:
        return self.places.get(rank)


@dataclass
class Trainer:
    """A rank that trains in step with the others."""

    rank: int
    job: Job
    blocked: float = 0.0
    steps: int = 0
    _asks_since: float | None = None

    def __post_init__(self) -> None:
        self.random = Random(f"{self.job.seed} {self.rank}")
        self.clock = asyncio.get_running_loop().time

    @property
    def is_paused(self) -> bool:
        fault = self.job.fault
        return fault is not None and fault.kind == "paused" and fault.is_on(self.rank)

    def statistics(self, run: Run) -> dict[str, Any]:
        now = 0.0 if self._asks_since is None else self.clock() - self._asks_since
        taken = {"batches": self.steps, "seconds_blocked": self.blocked + now}
        return {**run.statistics(), **taken}

    async def train(self) -> None:
        store = SimulatedStore(SHARDS, latency=0.03, piece=PIECE, trouble=self.trouble)
        values = {"batch_size": BATCH, "lanes": LANES, "memory_budget": "16MiB", "epochs": None}
        dataset = dataset_over(store, known=True, **values, **self.job.settings)
        run = dataset.run(
            rank=self.rank,
            world_size=RANKS,
            batch_size=BATCH,
            position=None,
            measures=Measures(waits=WaitClock(self.clock)),
        )
        async with run, asyncio.TaskGroup() as group:
            looking = group.create_task(self.look(run))
            try:
                while self.job.goes_on:
                    await self.step(run)
            finally:
                looking.cancel()
                await self.job.leave()
        await dataset.aclose()

    def trouble(self, _: int, url: str, *__: int) -> Trouble:
        """Return the trouble of a request; healthy ones too take longer now and then."""
        fault = self.job.fault
        if fault is not None and (trouble := fault.trouble(self.rank, url)) is not None:
            return trouble
        if self.random.random() < HICCUPS:
            return Trouble(stalls_after=0, stall=self.random.uniform(1, 3))
        return Trouble(slowness=self.random.lognormvariate(0, 0.5))

    async def step(self, run: Run) -> None:
        asked = self._asks_since = self.clock()
        await run.receive()
        self.blocked += self.clock() - asked
        self._asks_since = None
        if self.job.fault is not None:
            self.job.fault.note_wait(self.rank, asked)
        self.steps += 1
        await asyncio.sleep(STEP * self.random.lognormvariate(0, 0.1))
        if self.rank == 0 and self.steps % CHECKPOINT == 0:
            await asyncio.sleep(10 * STEP)
        if self.is_paused:
            await asyncio.sleep(self.job.ends_at - self.clock())
        await self.job.barrier()

    async def look(self, run: Run) -> None:
        """Look at the other ranks once a period, as the thread of a report does."""
        board = MemoryBoard(self.rank, self.job.places)
        watch = RankWatch(board, EVERY, f"host-{self.rank}", self.clock)
        last = LastBeats(self.clock)
        beat = EVERY / beats_of(EVERY)
        await asyncio.sleep(self.random.uniform(0, beat))
        while self.job.goes_on and not self.is_paused:
            await asyncio.sleep(beat * self.random.uniform(1, 1.05))
            line = watch.look(last.beat(self.statistics(run)))
            if line is not None:
                self.job.lines.append((self.clock(), line))


@dataclass
class Job:
    """A job of all ranks."""

    kind: str
    seed: int
    lines: list[tuple[float, str]] = field(default_factory=list)
    """The sentences that were logged, and when."""
    places: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        random = Random(f"{self.kind} {self.seed}")
        rank, shard = random.randrange(RANKS), random.choice(list(SHARDS))
        self.fault: Fault | None = None
        if self.kind == "slow shard":
            self.fault = Fault(self.kind, random, set(), shard, since=math.inf)
        elif self.kind != HEALTHY:
            self.fault = Fault(self.kind, random, {rank})
        self.settings = {"transform": _same} if self.kind == "slow transform" else {}

    @property
    def ends_at(self) -> float:
        """The time at which the rank with the fault must have been named, or a healthy job ends."""
        fault = self.fault
        longest = WARM + 60 * MINUTES
        return longest if fault is None else min(longest, fault.since + WITHIN)

    @property
    def goes_on(self) -> bool:
        return _now() < self.ends_at

    async def barrier(self) -> None:
        """Wait for the other ranks, as a collective does."""
        with suppress(asyncio.BrokenBarrierError):
            await self._barrier.wait()

    async def leave(self) -> None:
        """Have no rank wait for one that is at its end."""
        await self._barrier.abort()

    async def play(self) -> None:
        self._barrier = asyncio.Barrier(RANKS)
        async with asyncio.TaskGroup() as group:
            for rank in range(RANKS):
                group.create_task(Trainer(rank, self).train())

    @property
    def is_right(self) -> bool:
        """True if the late rank was named with its cause, and no other one."""
        if self.fault is None:
            return not self.lines
        named = {int(line.split()[1]) for _, line in self.lines}
        return named <= self.fault.ranks and self.named_after is not None

    @property
    def named_after(self) -> float | None:
        """Seconds of the fault until its cause was named; ``None``: it was not."""
        fault = self.fault
        if fault is None:
            return None
        causes = (at for at, line in self.lines if any(words in line for words in fault.words))
        return next((at - fault.since for at in causes), None)


def _same(batch: Any) -> Any:
    return batch


def play(kind: str, seed: int) -> Job:
    """Play a job, and return it."""
    job = Job(kind, seed)
    ranks = iter(range(RANKS))

    def executor(*_: Any) -> InlineExecutor:
        """Return the executor of the rank that starts next."""
        is_late = job.fault is not None and next(ranks) in job.fault.ranks
        return SlowExecutor(job.fault.decoding) if job.fault and is_late else InlineExecutor()

    with pytest.MonkeyPatch.context() as patch:
        set_executors(patch, executor)
        # Simulated time does not wait for threads.
        at_once = SimpleNamespace(start_new_thread=lambda _, arguments: arguments[0].run())
        patch.setattr(cleanup, "_thread", at_once)
        with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
            runner.run(job.play())
    return job


def describe(jobs: list[Job]) -> str:
    """Return the row of the table about jobs of one kind."""
    right = sum(job.is_right for job in jobs)
    times = sorted(job.named_after for job in jobs if job.named_after is not None)
    seconds = f"{median(times):.0f} s, {times[-1]:.0f} s" if times else ""
    return f"| {jobs[0].kind} | {len(jobs)} | {right} | {seconds} |"


def main(kind: str = "all", trials: str = "17", seed: str = "0") -> None:
    print("| fault | jobs | judged right | median and longest time |")
    print("| --- | ---: | ---: | --- |")
    for one in (*FAULTS, HEALTHY) if kind == "all" else (kind,):
        jobs = [play(one, int(seed) + number) for number in range(int(trials))]
        print(describe(jobs), flush=True)
        for job in jobs:
            if not job.is_right:
                print(f"seed {job.seed}, {job.fault}: {job.lines}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
