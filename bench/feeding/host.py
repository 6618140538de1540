"""A process of clients: it opens them, lets them take batches for a while, and says what came.

Each line of its standard input is a command, each line of its output the answer:

* ``{"do": "open", "clients": 4, "arguments": {...}}``: connect, take a batch, say its size;
* ``{"do": "run", "name": ..., "start": ..., "stop": ...}``: take batches until ``stop``, and count
  those that come after ``start``; both are times of the system's monotonic clock;
* ``{"do": "close", "name": ...}``.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

Taken = tuple[int, int | None]
"""Records of a batch, and its bytes where they are asked for."""
Opener = Callable[[dict[str, Any]], Iterator[Any]]
"""Connects a client, and yields its batches."""


class Counted(NamedTuple):
    """The records that came in time, and the seconds that each batch was waited for."""

    records: int
    waits: list[float]


def take(batches: Iterator[Any], count: Callable[[Any], int], start: float, stop: float) -> Counted:
    """Take batches until a time."""
    records, waits = 0, []
    while (asked := monotonic()) < stop:
        came = count(next(batches))
        now = monotonic()
        if start <= now < stop:
            records += came
            waits.append(now - asked)
    return Counted(records, waits)


class Host:
    """The clients of this process.

    Args:
        openers: The function that connects a client, by the kind of client.
        count: Returns the number of records of a batch.
        size: Returns the bytes of a batch.
    """

    def __init__(
        self,
        openers: dict[str, Opener],
        count: Callable[[Any], int],
        size: Callable[[Any], int],
    ) -> None:
        self._openers, self._count, self._size = openers, count, size
        self._clients: dict[str, tuple[ThreadPoolExecutor, list[Iterator[Any]]]] = {}

    def open(self, name: str, kind: str, clients: int, arguments: dict[str, Any]) -> dict[str, Any]:
        """Connect clients, each of which takes a batch; return the size of the last one."""
        threads = ThreadPoolExecutor(clients)
        opened = list(threads.map(self._openers[kind], [arguments] * clients))
        self._clients[name] = threads, opened
        *_, last = threads.map(next, opened)
        return {"records": self._count(last), "nbytes": self._size(last)}

    def run(self, name: str, start: float, stop: float) -> dict[str, Any]:
        """Let the clients take batches until a time."""
        threads, opened = self._clients[name]
        each = threads.map(lambda one: take(one, self._count, start, stop), opened)
        counted = list(each)
        waits = [round(wait, 6) for one in counted for wait in one.waits]
        return {"records": sum(one.records for one in counted), "waits": waits}

    def close(self, name: str) -> dict[str, Any]:
        """Disconnect clients."""
        threads, opened = self._clients.pop(name)
        threads.shutdown()
        for one in opened:
            with suppress(AttributeError):
                one.close()  # type: ignore[attr-defined]
        return {}


def main(
    openers: dict[str, Opener], count: Callable[[Any], int], size: Callable[[Any], int]
) -> None:
    """Answer commands until the input ends."""
    host = Host(openers, count, size)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = getattr(host, command.pop("do"))(**command)
        except Exception as error:  # noqa: BLE001 - another client may still be measured
            traceback.print_exc()
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
