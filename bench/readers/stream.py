"""Reads a stream with ``for`` or ``async for``, beside a trainer that may be busy."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from typing import Any

import streamrec as sr
from bench.readers.specs import specs
from bench.readers.trainer import Trainer
from bench.stopwatch import Stopwatch
from streamrec.flow.bridge import new_event_loop

IMPORTED_BEFORE = ("aiobotocore.session", "streamrec.stores.local", "streamrec.stores.s3")
"""What the first use of a store would import; an engine process imports it anew all the same."""


def opened(order: dict[str, Any]) -> sr.Stream:
    """The stream of the order: of its own, or a feeder's."""
    if "address" in order:
        return sr.connect(order["address"], rank=0, world_size=1)
    return sr.open(
        order["source"],
        specs(order["features"]),
        batch_size=order["batch_size"],
        epochs=order.get("epochs", 1),
        engine=order.get("engine"),
        storage_options=order["storage_options"],
        rank=0,
        world_size=1,
    )


def take(batch: sr.Batch, watch: Stopwatch, trainer: Trainer) -> None:
    """What a trainer does with a batch."""
    labels: Any = batch["label"]
    watch.take(len(batch), int(labels.sum()))
    trainer.step()


def read(order: dict[str, Any], watch: Stopwatch, trainer: Trainer) -> None:
    """``for``."""
    watch.start()
    with opened(order) as stream:
        for batch in stream:
            take(batch, watch, trainer)
        watch.stop()


async def read_async(order: dict[str, Any], watch: Stopwatch, trainer: Trainer) -> None:
    """``async for``."""
    watch.start()
    async with opened(order) as stream:
        async for batch in stream:
            take(batch, watch, trainer)
        watch.stop()


def main() -> None:
    """Carry out the order."""
    order = json.loads(sys.argv[1])
    for name in IMPORTED_BEFORE:
        import_module(name)
    watch = Stopwatch(order["companions"])
    trainer = Trainer(order["iterations"], spinning=order["spinning"])
    with trainer.running():
        if order["loop"] is None:
            read(order, watch, trainer)
        else:
            factory = new_event_loop if order["loop"] == "uvloop" else asyncio.new_event_loop
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(read_async(order, watch, trainer))
    watch.print()


if __name__ == "__main__":
    main()
