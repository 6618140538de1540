"""Objects that are told, in a forked child, that their resources belong to the parent.

A fork copies sockets, event loops and the objects that own them, but not the threads that serve
them. The child's use of them would reach the parent: two processes would read one socket, and a
loop that is closed in the child removes its files from the epoll instance that both share.

A fork in the midst of an import leaves the child a module that is never finished. So a fork waits
for threads that are likely to import.
"""

from __future__ import annotations

import ctypes
import os
import threading
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

PATIENCE = 5.0
"""Seconds that a fork waits at most: the imports come first, and a peer may never answer."""
_awaited: dict[Future[Any], threading.Thread] = {}
_watched: WeakKeyDictionary[Any, Callable[[Any], object]] = WeakKeyDictionary()


def watch(thing: T, leave: Callable[[T], object]) -> None:
    """Call ``leave(thing)`` in the child after each fork, while the object lives.

    Args:
        thing: An object whose resources belong to the parent process after a fork.
        leave: Leaves them to the parent, before anything else runs in the child. A function of the
            class, since a bound method would keep the object alive.
    """
    _watched[thing] = leave


def wait_for(work: Future[Any], thread: threading.Thread) -> None:
    """Have each fork wait for the work of a thread, or for a few seconds.

    Args:
        work: Done when the thread imports nothing more.
        thread: The thread, not yet started. It may itself fork meanwhile.
    """
    _awaited[work] = thread
    work.add_done_callback(lambda work: _awaited.pop(work, None))


def _wait_for_all() -> None:
    current = threading.current_thread()
    wait([work for work, thread in list(_awaited.items()) if thread is not current], PATIENCE)


def keep_for_ever(thing: object) -> None:
    """Keep an object, and all that it refers to, until the process has ended."""
    # A global list would not do: the interpreter clears it, and destroys the object, when it ends.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _tell_all() -> None:
    # A copy: to leave may end an object, and with it its entry.
    for thing, leave in list(_watched.items()):
        leave(thing)


os.register_at_fork(before=_wait_for_all, after_in_child=_tell_all)
