"""Calls that block an event loop, which tests refuse wherever a loop runs."""

from __future__ import annotations

import builtins
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from blockbuster import BlockBuster, BlockBusterFunction

# blockbuster's way to patch built-in types replaces ``dir`` by one that asks every object for its
# ``__name__``, which Orbax' arguments refuse.
builtins.dir = vars(sys.modules["forbiddenfruit"])["__dir__"]

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor
    from threading import Thread

__all__ = ["ALLOWED", "refused"]

ROOMS = [f"streamrec.{room}" for room in ("feeder", "flow", "pipeline", "stores", "streams")]
"""The rooms whose calls are looked at. All that they call counts, of libraries too."""

ALLOWED = {
    ("logging/__init__.py", "handle"): "a line of another thread is being written, to the same log",
    ("streamrec/feeder/access.py", "__init__"): "a feeder's certificates, before it listens",
    ("streamrec/feeder/engine.py", "_spawn"): "plain code opens the stream, and waits for it",
    ("streamrec/feeder/worker.py", "_spawn"): "a worker starts where none is, or one has died",
    ("streamrec/flow/bridge.py", "close"): "plain code closes the stream, and waits for it",
    ("streamrec/streams/loops.py", "close"): "plain code closes the stream, and waits for it",
    ("streamrec/streams/stream.py", "__next__"): "plain code reads in a notebook, and waits for it",
    ("streamrec/streams/stream.py", "_sync"): "plain code reads in a notebook, and waits for it",
    (
        "streamrec/datasets/labels.py",
        "labels",
    ): "plain code reads in a notebook, and waits for it",
    ("streamrec/flow/child_process.py", "__init__"): "a test's own process",
    ("aiobotocore/credentials.py", "_retrieve_credentials_using"): "a process of the user's own",
    ("streamrec/devstore/server.py", "__enter__"): "a test's own store",
    ("streamrec/devstore/server.py", "__exit__"): "a test's own store",
    ("importlib/_bootstrap.py", "_find_and_load"): "a module is read once in a process",
    ("<frozen importlib._bootstrap>", "_find_and_load"): "a module is read once in a process",
}
"""Functions, by file and name, in which calls may block, and why."""


def _is_over(thread: Thread, *_: Any, **__: Any) -> bool:
    """Tell if a thread has ended, or has just told an ending loop that it has."""
    return not thread.is_alive() or thread.name.endswith("(_do_shutdown)")


def _does_not_wait(_: Executor, wait: bool = True, **__: Any) -> bool:
    return not wait


MORE: dict[str, Any] = {
    "concurrent.futures.ThreadPoolExecutor.shutdown": _does_not_wait,
    "socket.getaddrinfo": None,
    "ssl.SSLContext.load_cert_chain": None,
    "ssl.SSLContext.load_verify_locations": None,
    "subprocess.Popen.__init__": None,
    "subprocess.Popen.wait": None,
    "threading.Thread.join": _is_over,
}
"""Calls that blockbuster leaves alone, each with its exception."""
FILES = ("io.", "os.")
"""Calls that are not refused: libraries of stores read their own files when a dataset is opened.
What is read or written for a client is read in threads; tests of the stores hold that."""


def _never(*_: Any, **__: Any) -> bool:
    return False


@contextmanager
def refused() -> Iterator[None]:
    """Raise an error in each call that would block a running loop while the block runs."""
    blockers = BlockBuster(ROOMS)
    for name in [name for name in blockers.functions if name.startswith(FILES)]:
        del blockers.functions[name]
    for name, exception in MORE.items():
        blockers.functions[name] = BlockBusterFunction(
            None, name, scanned_modules=ROOMS, can_block_predicate=exception or _never
        )
    for function in blockers.functions.values():
        for file, name in ALLOWED:
            function.can_block_in(file, name)
    blockers.activate()
    try:
        yield
    finally:
        blockers.deactivate()
