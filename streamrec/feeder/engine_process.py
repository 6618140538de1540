"""The beginning of an engine process; :mod:`streamrec.feeder.engine` has the rest of its life.

The libraries take most of the time to the first batch to import, so this file itself imports none.
They are imported one after the other: two threads that import wait for the interpreter's lock, and
take a fifth more CPU time together than one. What reads the store comes last, since only the
settings may say which that is, and they may come much later than the process. Garbage is not looked
for meanwhile, where there is none (35 ms); and what is imported stays, so it is never looked
through again.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
from importlib import import_module
from typing import Any

__all__ = ["main"]

PATIENCE = 1.0
"""Seconds between two looks whether the parent still lives, as long as nothing is read for it."""


def main() -> None:
    """The child's whole life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    parent, sock, memory, head_start, store = (*sys.argv[1:], "", "", "")[:5]
    # The parent's first batch may need the cores more; once it is there, the parent says something.
    select.select([sys.stdin.fileno()], [], [], float(head_start or 0))
    _import_all(store)
    said = _listen(int(parent))
    if said:  # else the parent has no use for this process
        order = json.loads(said)
        _import_for(order)
        gc.freeze()
        gc.enable()
        _run(socket.socket(fileno=int(sock)), order, int(parent), int(memory) if memory else None)


def _import_all(store: str) -> None:
    """Import what every dataset needs, and what reads the store, where that is known."""
    import_module("streamrec.feeder.engine")
    import_module("streamrec.config").DatasetSettings.model_rebuild()
    import_module("streamrec.pipeline.dataset")
    with contextlib.suppress(ImportError):  # not on this platform
        import_module("uvloop")
    _import_store(store)


def _listen(parent: int) -> bytes:
    """Wait for what the parent says; nothing, where it has closed the pipe without a word."""
    said, stdin = bytearray(), sys.stdin.fileno()
    while True:
        if select.select([stdin], [], [], PATIENCE)[0]:
            piece = os.read(stdin, 1 << 20)
            if not piece:
                return bytes(said)
            said += piece
        elif os.getppid() != parent:  # a forked worker may still hold the pipe
            os._exit(1)


def _import_for(order: dict[str, Any]) -> None:
    """Import what only the settings tell; what is wrong with them is told where they are read."""
    # The user's functions are found where the parent finds them, behind everything else.
    sys.path += [place for place in order.get("path", []) if place not in sys.path]
    with contextlib.suppress(LookupError, TypeError):
        _import_store(order["settings"]["source"])


def _import_store(source: str | list[str]) -> None:
    # What is wrong with the source, or missing here, is told when the dataset is opened.
    with contextlib.suppress(Exception):
        if source:
            import_module("streamrec.stores.open").import_store(
                source if isinstance(source, str) else source[0]
            )


def _run(sock: socket.socket, order: dict[str, Any], parent: int, memory: int | None) -> None:
    import asyncio

    from streamrec.feeder.engine import serve
    from streamrec.flow.bridge import new_event_loop

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        told = order["settings"], parent, memory, order.get("shared", 0), order.get("objects")
        runner.run(serve(sock, *told))


if __name__ == "__main__":
    main()
