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
"""Seconds in which a trainer that has started its engine builds its model."""


def import_all() -> None:
    """What the first stream, and the first use of a store, would import.

    An engine process imports it anew.
    """
    for name in ("aiobotocore.session", "streamrec.streams.opening", "streamrec.pipeline.dataset"):
        import_module(name)
    for module in pkgutil.iter_modules(stores.__path__, f"{stores.__name__}."):
        with contextlib.suppress(ImportError):  # of an optional library that is not installed
            import_module(module.name)


def opened(order: dict[str, Any]) -> sr.Stream:
    """The stream of the order: of its own, or a feeder's."""
    if "address" in order:
        return sr.connect(order["address"], rank=0, world_size=1)
    return sr.open(
        order["source"],
        specs(order["features"]),
        batch_size=order["batch_size"],
        ordered=order.get("ordered", True),
        epochs=order.get("epochs", 1),
        engine=order.get("engine"),
        storage_options=order["storage_options"],
        rank=0,
        world_size=1,
        **order.get("settings", {}),
    )


def take(batch: sr.Batch, watch: Stopwatch, trainer: Trainer) -> None:
    """What a trainer does with a batch."""
    labels: Any = batch["label"]
    watch.take(len(batch), int(labels.sum()))
    trainer.step()


def read(order: dict[str, Any], watch: Stopwatch, trainer: Trainer) -> dict[str, Any]:
    """``for``; the stream's statistics."""
    if order.get("ahead"):
        sr.start_engine(order["source"])
        time.sleep(BUILDING)
    warm_memory()
    watch.start()
    with opened(order) as stream:
        for batch in islice(stream, order.get("batches")):
            take(batch, watch, trainer)
        watch.stop()
        return stream.statistics()


async def read_async(order: dict[str, Any], watch: Stopwatch, trainer: Trainer) -> dict[str, Any]:
    """``async for``; the stream's statistics."""
    warm_memory()
    watch.start()
    async with opened(order) as stream:
        taken = 0
        async for batch in stream:
            take(batch, watch, trainer)
            taken += 1
            if taken == order.get("batches"):
                break
        watch.stop()
        return stream.statistics()


def without_hedging() -> None:
    """Let no request be hedged: there is no setting for it, since nobody should want that."""
    hedging: Any = import_module("streamrec.plan.hedging")
    hedging.Hedging.allows = lambda *_, **__: False


def main() -> None:
    """Carry out the order."""
    order = json.loads(sys.argv[1])
    import_all()
    if not order.get("hedging", True):
        without_hedging()
    watch = Stopwatch(order["companions"])
    trainer = Trainer(order["iterations"], beside=order["beside"])
    with trainer.running():
        if order["loop"] is None:
            statistics = read(order, watch, trainer)
        else:
            factory = new_event_loop if order["loop"] == "uvloop" else asyncio.new_event_loop
            with asyncio.Runner(loop_factory=factory) as runner:
                statistics = runner.run(read_async(order, watch, trainer))
    watch.print(statistics=statistics)


if __name__ == "__main__":
    main()
