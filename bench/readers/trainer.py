"""A trainer that keeps the interpreter's lock or the cores busy; alone, it shows what it allows."""

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

__all__ = ["Trainer", "iterations_in"]

MATRIX = 512
"""Rows and columns: a product takes some ms, and the interpreter's lock is free meanwhile."""
PYTHON_ITERATIONS = 100_000
"""Between matrix products: some ms of Python, as a training loop has between its steps."""


class Trainer:
    """Pure Python after each batch and, if asked, all the time in a thread beside it.

    Args:
        iterations: Of a loop after each batch; 0: the trainer is idle.
        beside: What a thread does all the time as well: ``"python"`` holds the lock, as a progress
            bar or a logger would at worst, ``"matrix"`` multiplies matrices and runs Python by
            turns; ``None``: there is no such thread.
    """

    def __init__(self, iterations: int, *, beside: str | None = None) -> None:
        self._iterations = iterations
        self._work = None if beside is None else WORK[beside]
        self._ended = False

    def step(self) -> None:
        """What happens after each batch."""
        spin(self._iterations)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Do meanwhile what is to be done beside."""
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
    """Work that never lets the lock go by itself."""
    return lambda: spin(1000)


def matrices() -> Callable[[], object]:
    """Work that lets it go for about half of the time."""
    import numpy as np

    factor: Any = np.random.default_rng(0).random((MATRIX, MATRIX), np.float32)

    def piece() -> None:
        for _ in range(4):
            factor @ factor
        spin(PYTHON_ITERATIONS)

    return piece


WORK: dict[str, Callable[[], Callable[[], object]]] = {"python": python, "matrix": matrices}


def iterations_in(seconds: float) -> int:
    """How many iterations take so long on this machine when nothing disturbs them."""
    trial = 100_000
    best = min(_time(trial) for _ in range(20))
    return round(trial * seconds / best)


def _time(iterations: int) -> float:
    started = time.perf_counter()
    spin(iterations)
    return time.perf_counter() - started


def main() -> None:
    """Train on nothing, as many steps as the order says."""
    order = json.loads(sys.argv[1])
    watch = Stopwatch(order["companions"])
    trainer = Trainer(order["iterations"], beside=order["beside"])
    watch.records, watch.label_sum = order["records"], order["label_sum"]
    with trainer.running():
        watch.start()
        for _ in range(-(-order["records"] // order["batch_size"])):
            trainer.step()
        watch.stop()
    watch.print()


if __name__ == "__main__":
    main()
