"""Reads a stream for some epochs, and notes the process's memory after each."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import streamrec as sr
from bench.readers.specs import specs
from bench.stopwatch import Stopwatch
from bench.usage import resident_megabytes
from streamrec.flow.bridge import new_event_loop


async def read(order: dict[str, Any], watch: Stopwatch) -> list[float]:
    """The memory after each epoch, in 10^6 bytes."""
    resident: list[float] = []
    stream = sr.open(
        order["source"],
        specs(order["features"]),
        batch_size=order["batch_size"],
        epochs=order["epochs"],
        rank=0,
        world_size=1,
    )
    watch.start()
    async with stream:
        async for batch in stream:
            labels: Any = batch["label"]
            watch.take(len(batch), int(labels.sum()))
            if watch.records >= order["records"] * (len(resident) + 1):
                resident.append(resident_megabytes(os.getpid()))
        watch.stop()
    return resident


def main() -> None:
    """Carry out the order."""
    order = json.loads(sys.argv[1])
    watch = Stopwatch({})
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        resident = runner.run(read(order, watch))
    watch.print(resident_megabytes=resident)


if __name__ == "__main__":
    main()
