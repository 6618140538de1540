"""A trainer that keeps the interpreter's lock busy; alone, it shows the rate that it allows."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from typing import TYPE_CHECKING

from bench.stopwatch import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Trainer", "iterations_in"]


class Trainer:
    """Pure Python after each batch and, if asked, all the time in a thread beside it.

    Args:
        iterations: Of a loop after each batch; 0: the trainer is idle.
        spinning: Whether a thread loops as well, as a progress bar's or a logger's would at worst.
    """

    def __init__(self, iterations: int, *, spinning: bool) -> None:
        self._iterations = iterations
        self._spinning = spinning
        self._ended = False

    def step(self) -> None:
        """What happens after each batch."""
        spin(self._iterations)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Spin meanwhile."""
        if not self._spinning:
            yield
            return
        thread = threading.Thread(target=self._spin, name="spinning")
        thread.start()
        try:
            yield
        finally:
            self._ended = True
            thread.join()

    def _spin(self) -> None:
        while not self._ended:
            spin(1000)


def spin(iterations: int) -> int:
    """Hold the lock with arithmetic."""
    total = 0
    for number in range(iterations):
        total += number & 7
    return total


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
    trainer = Trainer(order["iterations"], spinning=order["spinning"])
    watch.records, watch.label_sum = order["records"], order["label_sum"]
    with trainer.running():
        watch.start()
        for _ in range(-(-order["records"] // order["batch_size"])):
            trainer.step()
        watch.stop()
    watch.print()


if __name__ == "__main__":
    main()
