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
    ("streamrec/feeder/access/access.py", "__init__"): "a feeder's certificates, before it listens",
    (
        "streamrec/feeder/engine/engine.py",
        "_spawn",
    ): "plain code opens the stream, and waits for it",
    (
        "streamrec/feeder/workers/worker.py",
        "_spawn",
    ): "a worker starts where none is, or one has died",
    (
        "streamrec/stores/processes/fetch_processes.py",
        "_spawn",
    ): "a fetch process starts where none is, or one has died",
    ("streamrec/flow/bridge.py", "close"): "plain code closes the stream, and waits for it",
    ("streamrec/streams/loops.py", "close"): "plain code closes the stream, and waits for it",
    ("streamrec/streams/stream.py", "__next__"): "plain code reads in a notebook, and waits for it",
    (
        "streamrec/streams/session_owner.py",
        "_sync",
    ): "plain code reads in a notebook, and waits for it",
    (
        "streamrec/datasets/dataset_manifest.py",
        "labels",
    ): "plain code reads in a notebook, and waits for it",
    ("streamrec/flow/child_process.py", "__init__"): "a test's own process",
    ("streamrec/flow/child_process.py", "ready"): "a test's or a benchmark's own process",
    ("streamrec/flow/child_process.py", "close"): "a test's or a benchmark's own process",
    ("aiobotocore/credentials.py", "_retrieve_credentials_using"): "a process of the user's own",
    ("streamrec/devstore/server.py", "__enter__"): "a test's own store",
    ("streamrec/devstore/server.py", "__exit__"): "a test's own store",
    ("importlib/_bootstrap.py", "_find_and_load"): "a module is read once in a process",
    ("<frozen importlib._bootstrap>", "_find_and_load"): "a module is read once in a process",
    # Files that are on no disk, or that plain code reads and writes.
    ("streamrec/config/machine.py", "usable_cores"): "files of the kernel",
    ("streamrec/config/machine.py", "_memory_limit"): "files of the kernel",
    ("streamrec/measure/job.py", "_read"): "files of the kernel",
    ("streamrec/flow/shared_memory.py", "make_sealed"): "a file in memory",
    ("streamrec/streams/opening.py", "open"): "plain code opens the stream",
    ("streamrec/datasets/writer.py", "__init__"): "plain code writes a file",
    ("streamrec/datasets/writer.py", "write"): "plain code writes a file",
    ("streamrec/datasets/writer.py", "close"): "plain code writes a file",
    ("tests/pipeline/simulated_store.py", "submit"): "simulated time waits for no thread",
    # Files that libraries read.
    ("linecache.py", "updatecache"): "lines of source for a traceback, once in a process",
    ("<frozen linecache>", "updatecache"): "lines of source for a traceback, once in a process",
    ("botocore/configloader.py", "raw_config_parse"): "a session's configuration, once for a store",
    ("botocore/loaders.py", "_load_file"): "descriptions, once for a store",
    ("botocore/loaders.py", "list_api_versions"): "descriptions, once for a store",
    ("botocore/loaders.py", "list_available_services"): "descriptions, once for a store",
    ("botocore/loaders.py", "_potential_locations"): "descriptions, once for a store",
    ("botocore/utils.py", "__contains__"): "the kept token of a login, when it has ended",
    ("botocore/utils.py", "__getitem__"): "the kept token of a login, when it has ended",
    ("botocore/utils.py", "__setitem__"): "the kept token of a login, when it has ended",
    # Few calls of our own, which could go to a thread; none is made for each client of a feeder.
    ("streamrec/feeder/server/listener.py", "__init__"): "the file of a socket, before it listens",
    ("streamrec/feeder/server/listener.py", "close"): "the file of a socket, when a feeder ends",
    ("streamrec/streams/start.py", "functions_of"): "in the user's loop, before the first batch",
    ("streamrec/stores/open.py", "store_for"): "looks for certificates, once for a dataset",
    ("streamrec/stores/http/transport.py", "transport_of"): "looks for certificates, once a store",
    ("streamrec/stores/s3/s3_errors.py", "_missing_file"): "a hint in the error that ends a stream",
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
FILE_CALLS = (
    *("builtins.open", "io.open", "os.open", "os.scandir", "os.lstat", "os.chmod", "os.utime"),
    *("os.pread", "os.preadv", "os.pwrite", "os.fsync", "os.fdatasync", "os.truncate"),
    *("os.ftruncate", "io.FileIO.read", "io.FileIO.readall", "io.FileIO.readinto"),
    "io.FileIO.write",
)
"""Calls of files that blockbuster leaves alone: it knows ``stat``, ``rename`` and their like, and
what goes through a buffer."""
MEMORY_CALLS = ("os.getcwd", "os.path.abspath", "os.path.samestat")
"""Calls that blockbuster refuses, though no disk is asked."""


def _never(*_: Any, **__: Any) -> bool:
    return False


@contextmanager
def refused() -> Iterator[None]:
    """Raise an error in each call that would block a running loop while the block runs."""
    blockers = BlockBuster(ROOMS)
    for name in MEMORY_CALLS:
        del blockers.functions[name]
    for name, exception in (MORE | dict.fromkeys(FILE_CALLS)).items():
        blockers.functions[f"{name}()"] = BlockBusterFunction(
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
