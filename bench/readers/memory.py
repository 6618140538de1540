"""Reads a stream for some epochs, and reports the process's memory after each."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from bench.readers.stream import opened
from bench.stopwatch import Stopwatch
from bench.usage import resident_megabytes
from streamrec.flow.bridge import new_event_loop


async def read(arguments: dict[str, Any], watch: Stopwatch) -> list[float]:
    """Return the memory after each epoch, in 10^6 bytes."""
    resident: list[float] = []
    stream = opened(arguments)
    watch.start()
    async with stream:
        async for batch in stream:
            labels: Any = batch["label"]
            watch.take(len(batch), int(labels.sum()))
            if watch.records >= arguments["records"] * (len(resident) + 1):
                resident.append(resident_megabytes(os.getpid()))
        watch.stop()
    return resident


def main() -> None:
    """Read as the arguments say, and print the report."""
    arguments = json.loads(sys.argv[1])
    watch = Stopwatch({})
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        resident = runner.run(read(arguments, watch))
    watch.print(resident_megabytes=resident)


if __name__ == "__main__":
    main()
