"""A trainer that keeps the interpreter's lock or the cores busy, also alone, without data."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from bench.stopwatch import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MATRIX = 512
"""Number of rows and columns: a product takes some ms, during which the lock is free."""
PYTHON_ITERATIONS = 100_000
"""Iterations between matrix products: some ms, as in a training loop between its steps."""


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


def python() -> Callable[[], object]:
    """Return work that never releases the lock by itself."""
    return lambda: spin(1000)


def matrices() -> Callable[[], object]:
    """Return work that releases the lock for about half of the time."""
    import numpy as np

    factor: Any = np.random.default_rng(0).random((MATRIX, MATRIX), np.float32)

    def piece() -> None:
        for _ in range(4):
            factor @ factor
        spin(PYTHON_ITERATIONS)

    return piece


WORK: dict[str, Callable[[], Callable[[], object]]] = {"python": python, "matrix": matrices}


def iterations_in(seconds: float) -> int:
    """Return the number of iterations that take so long on this machine when it is idle."""
    trial = 100_000
    best = min(_time(trial) for _ in range(20))
    return round(trial * seconds / best)


def _time(iterations: int) -> float:
    started = time.perf_counter()
    spin(iterations)
    return time.perf_counter() - started


def main() -> None:
    """Train without data, as many steps as the arguments say."""
    arguments = json.loads(sys.argv[1])
    watch = Stopwatch(arguments["companions"])
    trainer = Trainer(arguments["iterations"], beside=arguments["beside"])
    watch.records, watch.label_sum = arguments["records"], arguments["label_sum"]
    with trainer.running():
        watch.start()
        for _ in range(-(-arguments["records"] // arguments["batch_size"])):
            trainer.step()
        watch.stop()
    watch.print()


if __name__ == "__main__":
    main()
