"""An attack on a feeder: ``python -m bench.crowding.attackers KIND HOST PORT``.

It prints a line once it goes on, and how many connections a second it made when its standard input
ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from streamrec.flow.bridge import new_event_loop
from streamrec.wire.messages import Hello
from streamrec.wire.protocol import Connection, Role

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

AT_ONCE = 64
"""Connections that an attacker has at a time."""
HALF_OPEN = 500
"""Connections of the attack that holds as many as it can: twice what a feeder keeps by default."""
SLOWLY = 0.05
"""Seconds between two bytes of the attack by slow bytes."""
SETTLE = 1.0
"""Seconds until an attack has all its connections."""
GARBAGE = random.Random(1).randbytes(4096)
HELLO = b"".join(
    Connection(Role.CLIENT).send(Hello(dataset="train", world_size=1, token="a wrong token"))
)

Place = tuple[str, int]


async def garbage(place: Place) -> None:
    """Send what is no frame, and read until the feeder hangs up."""
    await _say(place, [GARBAGE], 0.0)


async def wrong_token(place: Place) -> None:
    """Say HELLO with a wrong token, and hang up once that is refused."""
    async with _connected(place) as (reader, writer):
        writer.write(HELLO)
        await reader.read(1)


async def slow_bytes(place: Place) -> None:
    """Say HELLO byte by byte, and never its end."""
    await _say(place, [HELLO[i : i + 1] for i in range(len(HELLO) - 1)], SLOWLY)


async def half_open(place: Place) -> None:
    """Say nothing until the feeder hangs up."""
    await _say(place, [], 0.0)


async def connect(place: Place) -> None:
    """Connect and hang up at once."""
    async with _connected(place):
        pass


KINDS: dict[str, tuple[Callable[[Place], Awaitable[None]], int]] = {
    "garbage": (garbage, AT_ONCE),
    "wrong tokens": (wrong_token, AT_ONCE),
    "slow bytes": (slow_bytes, HALF_OPEN),
    "half-open": (half_open, HALF_OPEN),
    "connect and leave": (connect, AT_ONCE),
}
"""Kinds of attacks, and with how many connections at a time."""


async def attack(kind: str, place: Place) -> float:
    """Attack until the standard input ends, and return the connections a second."""
    go, at_once = KINDS[kind]
    done = 0

    async def again_and_again() -> None:
        nonlocal done
        while True:
            # uvloop's, for writing to a connection that the feeder has just cut
            with contextlib.suppress(OSError, RuntimeError):
                await go(place)
            done += 1
            await asyncio.sleep(0)

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(again_and_again()) for _ in range(at_once)]
        await asyncio.sleep(SETTLE)
        print("attacking", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()
    return done / (time.monotonic() - began)


async def _say(place: Place, pieces: Iterable[bytes], pause: float) -> None:
    async with _connected(place) as (reader, writer):
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(pause)
        await reader.read()


@asynccontextmanager
async def _connected(
    place: Place,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*place)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def main() -> None:
    kind, host, port = sys.argv[1:]
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        print(runner.run(attack(kind, (host, int(port)))))


if __name__ == "__main__":
    main()
