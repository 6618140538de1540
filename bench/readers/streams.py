"""Reads streams: beside a trainer that may be busy, to the last row checked, or for many epochs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pkgutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

import numpy as np

import streamrec as sr
from bench.stopwatch import Arguments, Stopwatch, main, resident_megabytes
from streamrec import stores
from streamrec.flow.bridge import new_event_loop

BUILDING = 1.5
"""Seconds that a trainer takes to build its model after it has started its engine."""
MATRIX = 512
"""Number of rows and columns: a product takes some ms, during which the lock is free."""
PYTHON_ITERATIONS = 100_000
"""Iterations between matrix products: some ms, as in a training loop between its steps."""


def import_all() -> None:
    """Import the modules that the first stream and the first use of a store would import.

    An engine process imports them again.
    """
    for name in ("aiobotocore.session", "streamrec.streams.opening", "streamrec.pipeline.dataset"):
        import_module(name)
    for module in pkgutil.walk_packages(stores.__path__, f"{stores.__name__}."):
        with contextlib.suppress(ImportError):  # of an optional library that is not installed
            import_module(module.name)


def specs(plain: Mapping[str, Mapping[str, Any]]) -> dict[str, sr.FixedLenFeature]:
    """Return specs for features in the plain form of :mod:`bench.datasets`."""
    return {name: sr.FixedLenFeature(**arguments) for name, arguments in plain.items()}


def open_stream(arguments: Arguments) -> sr.Stream:
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


# -- trainers --------------------------------------------------------------------------------------


class Trainer:
    """A trainer that runs pure Python after each batch, and may keep a thread busy besides.

    Args:
        iterations: Iterations of a loop after each batch; none where the trainer is idle.
        beside: Work of a thread: ``"python"`` holds the lock, as a progress bar or a logger would
            at worst, ``"matrix"`` multiplies matrices and runs Python by turns; ``None`` for no
            thread.
    """

    def __init__(self, iterations: int, *, beside: str | None = None) -> None:
        self._iterations = iterations
        self._work = None if beside is None else WORK[beside]
        self._ended = False

    def step(self) -> None:
        """Work as after a batch."""
        spin(self._iterations)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Keep the thread busy during the ``with`` block."""
        if self._work is None:
            yield
            return
        thread = threading.Thread(target=self._repeat, args=(self._work(),), name="beside")
        thread.start()
        try:
            yield
        finally:
            self._ended = True
            thread.join()

    def _repeat(self, piece: Callable[[], object]) -> None:
        while not self._ended:
            piece()


def spin(iterations: int) -> int:
    """Hold the lock with arithmetic."""
    total = 0
    for number in range(iterations):
        total += number & 7
    return total


def multiply_matrices() -> Callable[[], object]:
    """Return work that releases the lock for about half of the time."""
    factor: Any = np.random.default_rng(0).random((MATRIX, MATRIX), np.float32)

    def piece() -> None:
        for _ in range(4):
            factor @ factor
        spin(PYTHON_ITERATIONS)

    return piece


WORK: dict[str, Callable[[], Callable[[], object]]] = {
    "python": lambda: lambda: spin(1000),  # never releases the lock by itself
    "matrix": multiply_matrices,
}


def iterations_in(seconds: float) -> int:
    """Return the number of iterations that take so long on this machine when it is idle."""

    def trial(iterations: int = 100_000) -> float:
        began = time.perf_counter()
        spin(iterations)
        return (time.perf_counter() - began) / iterations

    return round(seconds / min(trial() for _ in range(20)))


def train(arguments: Arguments) -> dict[str, Any]:
    """Train without data, as many steps as the arguments say."""
    watch = Stopwatch(arguments["companions"])
    trainer = Trainer(arguments["iterations"], beside=arguments["beside"])
    watch.records, watch.label_sum = arguments["records"], arguments["label_sum"]
    with trainer.running():
        watch.start(warm=False)
        for _ in range(-(-arguments["records"] // arguments["batch_size"])):
            trainer.step()
        watch.stop()
    return watch.report()


# -- readers ---------------------------------------------------------------------------------------


def loop_over(
    arguments: Arguments, watch: Stopwatch, take: Callable[[sr.Batch], bool], *, warm: bool
) -> dict[str, Any]:
    """Read with ``for``, or with ``async for`` where there is a loop; return the statistics.

    ``take`` takes a batch, and returns whether there should be another.
    """
    if arguments["loop"] is not None:
        factory = new_event_loop if arguments["loop"] == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(loop_async(arguments, watch, take, warm=warm))
    if arguments.get("ahead"):
        sr.start_engine(arguments["source"])
        time.sleep(BUILDING)
    watch.start(warm=warm)
    with open_stream(arguments) as stream:
        for batch in stream:
            if not take(batch):
                break
        watch.stop()
        return stream.statistics()


async def loop_async(
    arguments: Arguments, watch: Stopwatch, take: Callable[[sr.Batch], bool], *, warm: bool
) -> dict[str, Any]:
    watch.start(warm=warm)
    async with open_stream(arguments) as stream:
        async for batch in stream:
            if not take(batch):
                break
        watch.stop()
        return stream.statistics()


def read(arguments: Arguments) -> dict[str, Any]:
    """Read beside a trainer, all batches or so many."""
    import_all()
    if not arguments.get("hedging", True):
        stop_hedging()
    watch = Stopwatch(arguments["companions"])
    trainer = Trainer(arguments["iterations"], beside=arguments["beside"])
    left = arguments.get("batches") or -1

    def take(batch: sr.Batch) -> bool:
        nonlocal left
        labels: Any = batch["label"]
        watch.take(len(batch), int(labels.sum()))
        trainer.step()
        left -= 1
        return left != 0

    with trainer.running():
        statistics = loop_over(arguments, watch, take, warm=True)
    return {**watch.report(), "statistics": statistics}


def stop_hedging() -> None:
    """Hedge no request; no setting does this, since nobody should want it."""
    hedging: Any = import_module("streamrec.plan.reading.concurrency")
    hedging.Hedging.allows = lambda *_, **__: False


def check_first(arguments: Arguments) -> dict[str, Any]:
    """Read a batch, and check every row by its origin.

    ``templates`` files of ``per_template`` records each, whose labels count up, make up the shards
    by turns. The source is a glob, or as many names as there are shards.
    """
    import_all()
    watch = Stopwatch(arguments["companions"])
    if arguments["names"] is not None:
        names = [arguments["names"].format(number) for number in range(arguments["shards"])]
        arguments = {**arguments, "source": names}

    def take(batch: sr.Batch) -> bool:
        origin, each = batch.origin, arguments["per_template"]
        template = origin.shards.astype(np.int64) % arguments["templates"]
        numbers = template * each + origin.records % each
        labels: Any = batch["label"]
        if not np.array_equal(labels, numbers % arguments["labels"]):
            raise ValueError(f"wrong records after {watch.records}")
        watch.take(len(batch), int(labels.sum()))
        return False

    loop_over(arguments, watch, take, warm=False)
    return watch.report()


def note_memory(arguments: Arguments) -> dict[str, Any]:
    """Read for some epochs, and report the process's memory after each, in 10^6 bytes."""
    watch = Stopwatch({})
    resident: list[float] = []

    def take(batch: sr.Batch) -> bool:
        labels: Any = batch["label"]
        watch.take(len(batch), int(labels.sum()))
        if watch.records >= arguments["records"] * (len(resident) + 1):
            resident.append(resident_megabytes(os.getpid()))
        return True

    loop_over({**arguments, "loop": "uvloop"}, watch, take, warm=False)
    return {**watch.report(), "resident_megabytes": resident}


if __name__ == "__main__":
    main({"stream": read, "first": check_first, "memory": note_memory, "trainer": train})
