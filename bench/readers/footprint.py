"""Reads a stream for a while, checks every row by its origin, and notes what memory that took."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np

import streamrec as sr
from bench.readers.specs import specs
from bench.readers.stream import import_all
from bench.stopwatch import Stopwatch
from streamrec.flow.bridge import new_event_loop


def source(order: dict[str, Any]) -> str | list[str]:
    """A pattern, or as many names as the order says."""
    if order["names"] is None:
        pattern: str = order["source"]
        return pattern
    return [order["names"].format(number) for number in range(order["shards"])]


def opened(order: dict[str, Any]) -> sr.Stream:
    """The stream of the order."""
    return sr.open(
        source(order),
        specs(order["features"]),
        batch_size=order["batch_size"],
        engine=order["engine"],
        storage_options=order["storage_options"],
        rank=0,
        world_size=1,
        **order["settings"],
    )


class Checked:
    """Takes batches until there are enough.

    Args:
        order: ``templates`` files of ``per_template`` records each, whose labels count up, stand in
            the shards by turns, each once or end to end.
        watch: Told of each batch.
    """

    def __init__(self, order: dict[str, Any], watch: Stopwatch) -> None:
        self._order = order
        self._watch = watch

    def take(self, batch: sr.Batch) -> bool:
        """Check the labels of a batch; whether more are wanted."""
        order, origin = self._order, batch.origin
        template = origin.shards.astype(np.int64) % order["templates"]
        number = template * order["per_template"] + origin.records % order["per_template"]
        labels: Any = batch["label"]
        if not np.array_equal(labels, number % order["labels"]):
            raise ValueError(f"wrong records after {self._watch.records}")
        self._watch.take(len(batch), int(labels.sum()))
        most = order["most_records"]
        return most is None or self._watch.records < most


def read(order: dict[str, Any], watch: Stopwatch) -> None:
    """``for``."""
    checked = Checked(order, watch)
    watch.start()
    with opened(order) as stream:
        for batch in stream:
            if not checked.take(batch):
                break
        watch.stop()


async def read_async(order: dict[str, Any], watch: Stopwatch) -> None:
    """``async for``."""
    checked = Checked(order, watch)
    watch.start()
    async with opened(order) as stream:
        async for batch in stream:
            if not checked.take(batch):
                break
        watch.stop()


def main() -> None:
    """Carry out the order."""
    order = json.loads(sys.argv[1])
    import_all()
    watch = Stopwatch(order["companions"])
    if order["loop"] is None:
        read(order, watch)
    else:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(read_async(order, watch))
    watch.print()


if __name__ == "__main__":
    main()
