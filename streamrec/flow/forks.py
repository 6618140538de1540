"""Objects that are told, in a forked child, that their resources belong to the parent.

A fork copies sockets, event loops and the objects that own them, but not the threads that serve
them. The child's use of them would reach the parent: two processes would read one socket, and a
loop that is closed in the child removes its files from the epoll instance that both share.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Protocol
from weakref import WeakSet


class Forked(Protocol):
    """An object whose resources belong to the parent process after a fork."""

    def leave_to_parent(self) -> None:
        """Mark the object as the parent's; called in the child before anything else runs there."""
        ...


_watched: WeakSet[Any] = WeakSet()


def watch(thing: Forked) -> None:
    """Call ``thing.leave_to_parent()`` in the child after each fork, while the object lives."""
    _watched.add(thing)


def keep_for_ever(thing: object) -> None:
    """Keep an object, and all that it refers to, until the process has ended."""
    # A global list would not do: the interpreter clears it, and destroys the object, when it ends.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _tell_all() -> None:
    for thing in list(_watched):
        thing.leave_to_parent()


os.register_at_fork(after_in_child=_tell_all)
