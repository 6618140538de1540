"""Simulates fleets of feeders that size themselves, each for a day of jobs that come and go.

The cost of a byte is what bench/results/feeder.json measured of a feeder that reads shards.
Clients, feeders and the autoscaler do what they do in a cluster: a feeder starts within 45 to 90 s,
clients see a changed fleet after 45 s, the metrics are means over two minutes, and the autoscaler
follows the rule of docs/how-to/size-a-fleet.md. A job is as fast as its slowest rank. The oracle
knows the demand of each moment, packs it without a gap, and starts feeders at once.

Time goes in steps of 15 s, as Kubernetes' autoscaler looks. Where nothing moves any more, it goes
on at the next job that comes or ends.
"""

from __future__ import annotations

import json
import math
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, quantiles
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bench.cases import say
from bench.charts import OWN, draw_lines
from bench.harness import Aim, Column, Report, Run, benchmark, table_of
from bench.machine import ROOT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Counts = NDArray[np.int64]

MIXES = 1000
STEP = 15.0
"""Seconds between two looks of the autoscaler."""
DAY = 86400.0
CORES = 16
"""The cores of a feeder."""
LEAST = 2
"""The smallest fleet: one feeder may fail."""
WINDOW = 8
"""Looks over which a rate is a mean: two minutes."""
SEEN_AFTER = 45.0
"""Seconds until clients see a changed fleet: they look every 30 s, and twice."""
START = (45.0, 90.0)
"""Seconds that a feeder takes to start."""
STILL = 10
"""Looks without a change after which nothing will change until a job comes or ends."""


class Job(NamedTuple):
    """A training job: when it comes and ends, its ranks, and the feeder's cores that each needs."""

    comes: float
    ends: float
    ranks: int
    cores: float


@dataclass(frozen=True)
class Rule:
    """The rule of the autoscaler, as docs/how-to/size-a-fleet.md has it."""

    target: float = 0.93
    """The part of the cores that should be busy."""
    most_wait: float = 0.75
    """The largest share of waiting that counts: so one step is four times the fleet, at most."""
    tolerance: float = 0.1
    """The part of the fleet below which a difference is left alone."""
    cool_down: float = 300.0
    """Seconds for which the largest of the wanted sizes counts."""
    slowest: float = 0.3
    """The part of the fleet that may go in a minute."""

    def wanted(self, busy: float, wait: float) -> float:
        """Return the size: the busy cores as if nobody waited, in feeders, over the target."""
        return busy / (1 - min(wait, self.most_wait)) / self.target

    def size(self, wanted: float, size: int) -> int:
        """Return the size that the autoscaler takes for a wanted one."""
        near = abs(wanted / size - 1) <= self.tolerance
        return size if near else max(LEAST, math.ceil(wanted - 1e-9))


def costs_of_feeders(path: Path = ROOT / "bench/results/feeder.json") -> list[float]:
    """Return the core seconds for a GB of parsed records from shards over TCP, for each kind."""
    rows = json.loads(path.read_text())["rows"]
    return [
        fmean(turn["server_cpu"] for turn in row["turns"])
        for row in rows
        if row["part"] == "shards" and row["system"] == "streamrec, TCP"
    ]  # fmt: skip


def mix(random: np.random.Generator, costs: list[float]) -> list[Job]:
    """Return the jobs of a day: their kinds, ranks, rates, times and pictures are random."""
    jobs, now, gap = [], 0.0, random.uniform(0.5, 3) * 3600
    while now < DAY:
        # A third decodes pictures as well: 4 to 20 core seconds for a GB.
        decoding = random.uniform(4, 20) if random.random() < 1 / 3 else 0.0
        gigabytes = 10 ** random.uniform(6.7, 8) / 1e9
        cores = gigabytes * (random.choice(costs) + decoding)
        lasts = 3600 * math.exp(random.normal(math.log(6), 0.7))
        jobs.append(Job(now, now + lasts, int(2 ** random.uniform(4, 9)), float(cores)))
        now += random.exponential(gap)
    return jobs


def level_of(ranks: Counts, cores: Floats, size: float = CORES) -> Floats:
    """Return the most cores that each feeder gives a rank: the same for all, or what they need.

    Args:
        ranks: The ranks of each job (rows) at each feeder (columns).
        cores: The cores that a rank of each job needs, ascending.
        size: The cores of a feeder.
    """
    level = np.full(ranks.shape[1], np.inf)
    free, left = np.full(ranks.shape[1], float(size)), ranks.sum(0)
    for job, need in enumerate(cores):
        short = np.isinf(level) & (left * need > free + 1e-9)
        level[short] = free[short] / left[short]
        free = free - ranks[job] * need
        left = left - ranks[job]
    return level


class Look(NamedTuple):
    """What a moment is like."""

    busy: float
    """The cores that are busy, in feeders."""
    wait: float
    """The share of time for which clients of one dataset wait for their feeder, at the worst."""
    stalled: float
    """The part of all ranks' time that is waiting, times the ranks."""


def look_at(ranks: Counts, cores: Floats) -> Look:
    """Return how busy feeders are and who waits, where each job is as fast as its slowest rank."""
    if not len(cores):
        return Look(0.0, 0.0, 0.0)
    level = level_of(ranks, cores)
    given = np.where(ranks > 0, np.minimum(1.0, level / cores[:, None]), 1.0)
    speed = given.min(1)
    busy = float((ranks * (cores * speed)[:, None]).sum()) / CORES
    # A rank at a faster feeder waits for its job, not for its feeder: these are the slowest ranks.
    worst = float(1 - speed.min())
    return Look(busy, worst, float(((1 - speed) * ranks.sum(1)).sum()))


@dataclass
class Fleet:
    """The feeders: those that are ready, those that start, and those that clients know."""

    random: np.random.Generator
    ready: list[int] = field(default_factory=lambda: list(range(LEAST)))
    starting: list[tuple[float, int]] = field(default_factory=list)
    known: list[int] = field(default_factory=lambda: list(range(LEAST)))
    _changed: float | None = None
    _next: int = LEAST

    @property
    def size(self) -> int:
        return len(self.ready) + len(self.starting)

    @property
    def is_settled(self) -> bool:
        return not self.starting and self._changed is None

    def turn(self, now: float) -> None:
        """Take feeders that have started, and show clients a fleet that has stayed as it is."""
        started = [number for at, number in self.starting if at <= now]
        if started:
            self.starting = [one for one in self.starting if one[0] > now]
            self.ready += started
            self._changed = now
        if self._changed is not None and now - self._changed >= SEEN_AFTER:
            self.known, self._changed = list(self.ready), None

    def resize(self, size: int, now: float) -> None:
        """Start feeders, or drain some: the clients of those move at once."""
        while self.size < size:
            self.starting.append((now + self.random.uniform(*START), self._next))
            self._next += 1
        while self.size > size and self.starting:
            self.starting.pop()
        if self.size > size:
            self.ready = self.ready[:size]
            self.known, self._changed = list(self.ready), None


class Clients:
    """The ranks of all jobs, and the feeder that each of them reads from."""

    def __init__(self, jobs: list[Job], random: np.random.Generator) -> None:
        self._jobs = sorted(jobs, key=lambda job: job.cores)
        self._random = random
        self._keys = np.empty((len(jobs), 0))

    def at(self, now: float, known: list[int]) -> tuple[Counts, Floats]:
        """Return the ranks of each job at each feeder, and the cores that a rank needs."""
        if known and max(known) >= self._keys.shape[1]:
            # Each dataset has an order of feeders of its own.
            more = self._random.random((len(self._jobs), 2 * max(known) + 2 - self._keys.shape[1]))
            self._keys = np.hstack([self._keys, more])
        here = [i for i, job in enumerate(self._jobs) if job.comes <= now < job.ends]
        place = self._keys[here][:, known].argsort(1).argsort(1)
        ranks = np.array([self._jobs[i].ranks for i in here], int)
        counts = (ranks // len(known))[:, None] + (place < (ranks % len(known))[:, None])
        return counts, np.array([self._jobs[i].cores for i in here])


class Day(NamedTuple):
    """What a day with a mix of jobs was like."""

    jobs: int
    stall: float
    """The share of their time for which ranks waited for feeders."""
    ratio: float
    """Feeder hours over those of the oracle."""
    turns: float
    """Changes from growing to shrinking and back, for each job that came or ended."""
    trace: list[tuple[float, int, float]]
    """Of each look the hour, the size and the oracle's size."""


class Autoscaler:
    """The rule with its memory: what was wanted within the cool-down, and the last direction."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._looks: deque[Look] = deque(maxlen=WINDOW + 1)
        self._sizes: deque[int] = deque(maxlen=round(rule.cool_down / STEP))
        self._direction = 0
        self.turns = 0
        self.is_settled = False

    def decide(self, look: Look, size: int, step: int) -> int:
        """Return the size of the fleet from now on."""
        past = list(self._looks)[-WINDOW:] or [look]  # this look is scraped before the next one
        self.is_settled = all(one == look for one in past) and set(self._sizes) == {size}
        self._looks.append(look)
        wanted = self._rule.wanted(fmean(p.busy for p in past), fmean(p.wait for p in past))
        self._sizes.append(self._rule.size(wanted, size))
        now = self._sizes[-1]
        if now > size:
            new = min(now, max(2 * size, size + 4))
        elif step % 4 == 0:
            least = size - max(1, int(size * self._rule.slowest))
            new = min(size, max(*self._sizes, least))
        else:
            new = size
        self._note(new - size)
        return new

    def _note(self, change: int) -> None:
        if change and self._direction * change < 0:
            self.turns += 1
        self._direction = change or self._direction


def live(jobs: list[Job], seed: int, rule: Rule) -> Day:
    """Return a day with these jobs."""
    random = np.random.default_rng([seed, 1])
    fleet, clients, scaler = Fleet(random), Clients(jobs, random), Autoscaler(rule)
    times = {job.comes for job in jobs} | {job.ends for job in jobs} | {DAY}
    events = sorted(math.ceil(time / STEP) for time in times if time <= DAY)
    stalled = asked = hours = least = 0.0
    trace, step, still = [], 0, 0
    while step < DAY / STEP:
        now = step * STEP
        fleet.turn(now)
        ranks, cores = clients.at(now, fleet.known)
        look = look_at(ranks, cores)
        oracle = max(LEAST, math.ceil(float((ranks.sum(1) * cores).sum()) / CORES - 1e-9))
        size = scaler.decide(look, fleet.size, step)
        still = still + 1 if size == fleet.size and fleet.is_settled and scaler.is_settled else 0
        # Nothing moves: the next thing that happens is a job.
        end = next(event for event in events if event > step) if still > STILL else step + 1
        trace.append((now / 3600, fleet.size, float(oracle)))
        fleet.resize(size, now)
        lasts = (end - step) * STEP
        stalled += look.stalled * lasts
        asked += float(ranks.sum()) * lasts
        hours += fleet.size * lasts
        least += oracle * lasts
        step, still = end, 0 if end > step + 1 else still
    return Day(len(jobs), stalled / asked, hours / least, scaler.turns / (2 * len(jobs)), trace)


COLUMNS = (
    Column("of the mixes", lambda row: row["what"], str),
    Column("stall, %", "stall"),
    Column("feeder hours, of the oracle's", "ratio"),
    Column("changes of direction a job", "turns"),
)


def rows_of_days(days: list[Day]) -> list[dict[str, Any]]:
    """Return the mean of all mixes and their worse ends."""

    def row(what: str, pick: Any) -> dict[str, Any]:
        stall = 100 * pick([day.stall for day in days])
        ratio, turns = (pick([getattr(day, name) for day in days]) for name in ("ratio", "turns"))
        return {"what": what, "stall": stall, "ratio": ratio, "turns": turns}

    return [
        row("the mean", fmean),
        row("95 of 100 have less", lambda values: quantiles(values, n=20)[-1]),
        row("the worst", max),
    ]


def draw(days: list[Day], target: Path) -> None:
    """Draw four days: the fleet, and the oracle's."""
    panels = {}
    for number, day in enumerate(days[:4], 1):
        hours, sizes, oracles = zip(*day.trace, strict=True)
        how: dict[str, Any] = {"drawstyle": "steps-post"}
        panels[f"mix {number}, feeders"] = [
            (hours, sizes, {**how, "color": OWN, "label": "the rule"}),
            (hours, oracles, {**how, "color": "#444444", "label": "an oracle", "linestyle": ":"}),
        ]
    draw_lines(panels, "hours", "Fleets that size themselves", target)


@benchmark("autoscale", repeat=MIXES)
def main(run: Run) -> Report:
    costs, days = costs_of_feeders(), []
    for seed in range(run.repeat):
        days.append(live(mix(np.random.default_rng([seed, 0]), costs), seed, Rule()))
        if seed % 100 == 99:
            say(f"{seed + 1} mixes")
    rows = rows_of_days(days)
    mean, most, _ = rows
    aims = (
        Aim("stall, mean of the mixes", "%", 1.0, mean["stall"], least=False),
        Aim("stall, in 95 of 100 mixes", "%", 1.0, most["stall"], least=False),
        Aim(
            "feeder hours, mean of the mixes",
            "times the oracle's",
            1.15,
            mean["ratio"],
            least=False,
        ),
        Aim(
            "feeder hours, in 95 of 100 mixes",
            "times the oracle's",
            1.15,
            most["ratio"],
            least=False,
        ),
        Aim(
            "changes of direction, mean of the mixes",
            "a job that comes or ends",
            1.0,
            mean["turns"],
            least=False,
        ),
    )
    facts = {"mixes": len(days), "costs": costs, "rows": rows}
    return Report(table_of(COLUMNS, rows), facts, aims, lambda target: draw(days, target))


if __name__ == "__main__":
    main()
