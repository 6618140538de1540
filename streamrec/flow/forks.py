"""Who has to know, in a forked child, that what it holds is its parent's.

A fork copies sockets, event loops and the objects that own them, but not the threads that serve
them. What the child did with them would reach the parent: two processes would read one socket, and
a loop that is closed in the child takes its files out of the epoll that both have.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Protocol
from weakref import WeakSet

__all__ = ["Forked", "keep_for_ever", "watch"]


class Forked(Protocol):
    """Something that must be left to the parent."""

    def leave_to_parent(self) -> None:
        """Called in the child, before anything else runs there."""
        ...


_watched: WeakSet[Any] = WeakSet()


def watch(thing: Forked) -> None:
    """Have something told of each fork, in the child, as long as it lives."""
    _watched.add(thing)


def keep_for_ever(thing: object) -> None:
    """See to it that nothing that belongs to a thing is ever destroyed in this process.

    A list would not do: the interpreter takes those apart when it ends.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _tell_all() -> None:
    for thing in list(_watched):
        thing.leave_to_parent()


os.register_at_fork(after_in_child=_tell_all)
