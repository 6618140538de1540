"""A trainer without data: ``python -m bench.crowding.beat SECONDS``.

It computes that long, again and again, as the clients of :mod:`bench.crowding.clients` do, and
waits for nothing else. For each line of its input it prints how often it has done so: what a busy
machine takes from any program that sleeps and wakes.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from bench.machine import ROOT
from streamrec.flow.bridge import new_event_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Beat:
    """Such a process that runs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def count(self) -> int:
        """Return how often it has computed since its start."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        return int(await self._process.stdout.readline())


@asynccontextmanager
async def beating(seconds: float) -> AsyncIterator[Beat]:
    """Run one while the block runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __spec__.name, str(seconds)),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    beat = Beat(process)
    await beat.count()
    try:
        yield beat
    finally:
        process.kill()
        await process.wait()


async def compute(seconds: float) -> None:
    """Sleep that long at a time; answer each line with the number of times; end with the input."""
    count = 0
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)

    async def answer() -> None:
        while await lines.readline():
            print(count, flush=True)

    asked = asyncio.create_task(answer())
    while not asked.done():
        await asyncio.sleep(seconds)
        count += 1


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(compute(float(sys.argv[1])))
