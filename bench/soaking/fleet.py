"""Processes that come to a feeder and leave it, each in another way."""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import streamrec as sr
from streamrec.errors import FeederRefused

if TYPE_CHECKING:
    from collections.abc import Callable

LIFETIMES = 2.0, 40.0
"""Seconds from which each client draws how long it stays."""
SLOW = 0.2
"""Seconds that a slow client spends on each batch."""
BATCH_SIZES = 8, 16, 32
RANKS = 4


class Visit(NamedTuple):
    """One client: what it is told, and until when it stays."""

    address: str
    token: str
    seed: int
    until: float
    """Time of :func:`time.monotonic`."""

    def read(self, seconds_a_batch: float = 0.0) -> None:
        """Read from a rank of its own until the time is over."""
        rng = random.Random(self.seed)
        with sr.connect(
            self.address,
            rank=rng.randrange(RANKS),
            world_size=RANKS,
            batch_size=rng.choice(BATCH_SIZES),
            token=self.token,
        ) as stream:
            for _ in stream:
                time.sleep(seconds_a_batch)
                if time.monotonic() > self.until:
                    return


def read_and_leave(visit: Visit) -> None:
    visit.read()


def read_slowly(visit: Visit) -> None:
    visit.read(SLOW)


def read_and_be_killed(visit: Visit) -> None:
    """Read longer than anybody stays: the fleet kills it."""
    visit._replace(until=float("inf")).read()


def leave_after_one_batch(visit: Visit) -> None:
    visit._replace(until=0.0).read()


def come_with_a_wrong_token(visit: Visit) -> None:
    try:
        visit._replace(token="wrong").read()
    except FeederRefused:
        return
    raise AssertionError("a feeder served a client with a wrong token")


KINDS: dict[str, tuple[Callable[[Visit], None], int]] = {
    "read at full speed": (read_and_leave, 8),
    "read and killed": (read_and_be_killed, 4),
    "read slowly": (read_slowly, 2),
    "left after a batch": (leave_after_one_batch, 2),
    "wrong token": (come_with_a_wrong_token, 2),
}
"""Kinds of clients, and how many of 18 are of each."""


class Fleet:
    """Clients of one feeder, each a process; where one has left, the next one comes.

    Args:
        address: Address of the dataset.
        token: Its token.
        seed: Seed of what they do.
    """

    def __init__(self, address: str, token: str, seed: int) -> None:
        self._address, self._token = address, token
        self._rng = random.Random(seed)
        self._here: dict[int, tuple[str, float]] = {}
        """The kinds of those who are here, and when they have to leave."""
        self.came: Counter[str] = Counter()
        """Clients by kind."""
        self.failed: Counter[str] = Counter()
        """Clients by kind that ended otherwise than they were meant to."""

    def fill(self, size: int) -> None:
        """Note who has left, kill those who are to be killed, and let others come."""
        for pid, (kind, until) in list(self._here.items()):
            if kind == "read and killed" and time.monotonic() > until:
                os.kill(pid, signal.SIGKILL)
            self._reap(pid, kind)
        while len(self._here) < size:
            self._start()

    def close(self) -> None:
        """Kill all who are here."""
        for pid in self._here:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._here.clear()

    def _start(self) -> None:
        [kind] = self._rng.choices(list(KINDS), [weight for _, weight in KINDS.values()])
        until = time.monotonic() + self._rng.uniform(*LIFETIMES)
        visit = Visit(self._address, self._token, self._rng.getrandbits(32), until)
        pid = os.fork()
        if not pid:
            _run(KINDS[kind][0], visit)
        self._here[pid] = kind, until
        self.came[kind] += 1

    def _reap(self, pid: int, kind: str) -> None:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            return
        del self._here[pid]
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if not (killed if kind == "read and killed" else status == 0):
            self.failed[kind] += 1


def _run(go: Callable[[Visit], None], visit: Visit) -> None:
    """Run a client in a process of its own, and end that."""
    code = 1
    try:
        go(visit)
        code = 0
    except BaseException:  # noqa: BLE001 - the process ends here, and its parent counts it
        traceback.print_exc(limit=-1)
    finally:
        os._exit(code)
