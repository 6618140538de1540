"""Reads a stream, checks every row by its origin, and reports the memory that it took."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.readers.stream import import_all, opened
from bench.stopwatch import Stopwatch
from streamrec.flow.bridge import new_event_loop

if TYPE_CHECKING:
    import streamrec as sr


def source(arguments: dict[str, Any]) -> str | list[str]:
    """Return a glob, or as many names as the arguments say."""
    if arguments["names"] is None:
        pattern: str = arguments["source"]
        return pattern
    return [arguments["names"].format(number) for number in range(arguments["shards"])]


class Checker:
    """Checks batches until there are enough.

    Args:
        arguments: ``templates`` files of ``per_template`` records each, whose labels count up, make
            up the shards by turns, each once or end to end.
        watch: Stopwatch of the reading.
    """

    def __init__(self, arguments: dict[str, Any], watch: Stopwatch) -> None:
        self._order = arguments
        self._watch = watch

    def take(self, batch: sr.Batch) -> bool:
        """Check the labels of a batch; return whether more batches are to be read."""
        arguments, origin = self._order, batch.origin
        template = origin.shards.astype(np.int64) % arguments["templates"]
        number = template * arguments["per_template"] + origin.records % arguments["per_template"]
        labels: Any = batch["label"]
        if not np.array_equal(labels, number % arguments["labels"]):
            raise ValueError(f"wrong records after {self._watch.records}")
        self._watch.take(len(batch), int(labels.sum()))
        most = arguments["most_records"]
        return most is None or self._watch.records < most


def read(arguments: dict[str, Any], watch: Stopwatch) -> None:
    """Read with ``for``."""
    checker = Checker(arguments, watch)
    watch.start()
    with opened({**arguments, "source": source(arguments)}) as stream:
        for batch in stream:
            if not checker.take(batch):
                break
        watch.stop()


async def read_async(arguments: dict[str, Any], watch: Stopwatch) -> None:
    """Read with ``async for``."""
    checker = Checker(arguments, watch)
    watch.start()
    async with opened({**arguments, "source": source(arguments)}) as stream:
        async for batch in stream:
            if not checker.take(batch):
                break
        watch.stop()


def main() -> None:
    """Read as the arguments say, and print the report."""
    arguments = json.loads(sys.argv[1])
    import_all()
    watch = Stopwatch(arguments["companions"])
    if arguments["loop"] is None:
        read(arguments, watch)
    else:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(read_async(arguments, watch))
    watch.print()


if __name__ == "__main__":
    main()
