"""Helpers of the tests of several parts."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import threading
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from streamrec.config.environment import LAUNCHERS
from streamrec.surroundings import has_gil

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

FEWEST_EXAMPLES = 5
"""Least number of examples that a property keeps in the daily profile."""


def examples(number: int) -> int:
    """Return how many examples the profile gives a property that has a number of its own.

    Such a number overrides the profile's, so the profile has to scale it: the number itself is what
    the property takes where there are Hypothesis' hundred.
    """
    return max(min(number, FEWEST_EXAMPLES), number * settings().max_examples // 100)


class Deferred:
    """A module that is imported when something of it is used.

    Every worker of pytest-xdist collects every test, but only the one that runs these needs it.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks for marks of its own on all that a module has
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


torch: Any = Deferred("torch")
has_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
IN_TORCHS_WORKER = pytest.mark.xdist_group("torch")
"""Mark of tests that use PyTorch in their own process: one worker imports it for all of them."""


def asynchronous(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a plain test of a coroutine function: each run has an event loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs), debug=False)

    return run


def open_fds() -> set[tuple[int, int, int]]:
    """Return the descriptors of this process, each with the device and inode behind it.

    Compare them as sets: other tests may have left something that closes late, so a count tells
    little.
    """
    opened = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - it is closed when the loop begins
        with suppress(OSError):  # the listing's own is closed
            status = os.fstat(int(name))
            opened.add((int(name), status.st_dev, status.st_ino))
    return opened


with_gil = pytest.mark.skipif(
    not has_gil(), reason="without a GIL no thread waits until another lets go of the interpreter"
)
"""Marks tests of who holds the interpreter's lock, and of what reads because it is held."""


@contextmanager
def no_switching() -> Iterator[None]:
    """Let each thread run until it lets go of the interpreter itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def another_ran_within(work: Callable[[], object]) -> bool:
    """Return whether this thread ran while another one did its work, under :func:`no_switching`."""
    begun, done = threading.Event(), threading.Event()

    def begin() -> None:
        begun.set()
        work()
        done.set()

    thread = threading.Thread(target=begin)
    thread.start()
    begun.wait()
    ran = not done.is_set()
    thread.join()
    return ran


def without_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away the variables by which launchers tell ranks, for one test."""
    for name in ("TF_CONFIG", "CLUSTER_SPEC", "SM_HOSTS", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(name, raising=False)
    for launcher in LAUNCHERS:
        _, rank, sizes, local_sizes, marks = launcher
        for name in (rank, *sizes, *local_sizes, *marks, "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID"):
            monkeypatch.delenv(name, raising=False)
