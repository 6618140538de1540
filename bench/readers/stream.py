"""Reads a stream with ``for`` or ``async for``, beside a trainer that may be busy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pkgutil
import sys
import time
from importlib import import_module
from itertools import islice
from typing import Any

import streamrec as sr
from bench.readers.specs import specs
from bench.readers.trainer import Trainer
from bench.stopwatch import Stopwatch
from bench.warming import warm_memory
from streamrec import stores
from streamrec.flow.bridge import new_event_loop

BUILDING = 1.5
"""Seconds that a trainer takes to build its model after it has started its engine."""


def import_all() -> None:
    """Import the modules that the first stream and the first use of a store would import.

    An engine process imports them again.
    """
    for name in ("aiobotocore.session", "streamrec.streams.opening", "streamrec.pipeline.dataset"):
        import_module(name)
    for module in pkgutil.walk_packages(stores.__path__, f"{stores.__name__}."):
        with contextlib.suppress(ImportError):  # of an optional library that is not installed
            import_module(module.name)


def opened(arguments: dict[str, Any]) -> sr.Stream:
    """Open the stream of the arguments: a feeder's where there is an address, or its own."""
    if "address" in arguments:
        return sr.connect(arguments["address"], rank=0, world_size=1)
    return sr.open(
        arguments["source"],
        specs(arguments["features"]),
        batch_size=arguments["batch_size"],
        ordered=arguments.get("ordered", True),
        epochs=arguments.get("epochs", 1),
        engine=arguments.get("engine"),
        storage_options=arguments.get("storage_options"),
        rank=0,
        world_size=1,
        **arguments.get("settings", {}),
    )


def ready(arguments: dict[str, Any]) -> list[sr.Batch]:
    """Return all batches of the stream of the arguments, in memory."""
    with opened(arguments) as stream:
        return list(stream)


def take(batch: sr.Batch, watch: Stopwatch, trainer: Trainer) -> None:
    """Take a batch as a trainer does."""
    labels: Any = batch["label"]
    watch.take(len(batch), int(labels.sum()))
    trainer.step()


def read(arguments: dict[str, Any], watch: Stopwatch, trainer: Trainer) -> dict[str, Any]:
    """Read with ``for``, and return the stream's statistics."""
    if arguments.get("ahead"):
        sr.start_engine(arguments["source"])
        time.sleep(BUILDING)
    warm_memory()
    watch.start()
    with opened(arguments) as stream:
        for batch in islice(stream, arguments.get("batches")):
            take(batch, watch, trainer)
        watch.stop()
        return stream.statistics()


async def read_async(
    arguments: dict[str, Any], watch: Stopwatch, trainer: Trainer
) -> dict[str, Any]:
    """Read with ``async for``, and return the stream's statistics."""
    warm_memory()
    watch.start()
    async with opened(arguments) as stream:
        taken = 0
        async for batch in stream:
            take(batch, watch, trainer)
            taken += 1
            if taken == arguments.get("batches"):
                break
        watch.stop()
        return stream.statistics()


def without_hedging() -> None:
    """Hedge no request; no setting does this, since nobody should want it."""
    hedging: Any = import_module("streamrec.plan.reading.hedging")
    hedging.Hedging.allows = lambda *_, **__: False


def main() -> None:
    """Read as the arguments say, and print the report."""
    arguments = json.loads(sys.argv[1])
    import_all()
    if not arguments.get("hedging", True):
        without_hedging()
    watch = Stopwatch(arguments["companions"])
    trainer = Trainer(arguments["iterations"], beside=arguments["beside"])
    with trainer.running():
        if arguments["loop"] is None:
            statistics = read(arguments, watch, trainer)
        else:
            factory = new_event_loop if arguments["loop"] == "uvloop" else asyncio.new_event_loop
            with asyncio.Runner(loop_factory=factory) as runner:
                statistics = runner.run(read_async(arguments, watch, trainer))
    watch.print(statistics=statistics)


if __name__ == "__main__":
    main()
