"""The beginning of an engine process; :mod:`streamrec.feeder.engine` has the rest of its life.

The libraries take most of the time to the first batch to import, so this file itself imports none.
What reads the store is imported in a thread beside everything else: the interpreter's lock is not
held while the system's certificates are loaded (40 ms). That thread waits for the settings, too,
which may come much later than the process. Nor is garbage looked for meanwhile, where there is none
(35 ms); and what is imported stays, so it is never looked through again.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import sys
import threading
from importlib import import_module
from typing import Any

__all__ = ["main"]

PATIENCE = 1.0
"""Seconds between two looks whether the parent still lives, as long as nothing is read for it."""


def main() -> None:
    """The child's whole life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    parent, sock, memory, store = (*sys.argv[1:], "", "")[:4]
    said = _import_all(store, int(parent))
    gc.freeze()
    gc.enable()
    if said:  # else the parent has no use for this process
        shared = int(memory) if memory else None
        _run(socket.socket(fileno=int(sock)), json.loads(said), int(parent), shared)


def _import_all(store: str, parent: int) -> bytes:
    """Import all there is to import; give what the parent says meanwhile, or later."""
    said = bytearray()
    listener = threading.Thread(target=_listen, args=(store, said), daemon=True)
    listener.start()
    import_module("streamrec.feeder.engine")
    import_module("streamrec.pipeline.dataset")
    with contextlib.suppress(ImportError):  # not on this platform
        import_module("uvloop")
    while listener.is_alive():
        if os.getppid() != parent:  # a forked worker may still hold the pipe
            os._exit(1)
        listener.join(PATIENCE)
    return bytes(said)


def _listen(store: str, said: bytearray) -> None:
    _import_store(store)
    said += sys.stdin.buffer.read()
    # What is wrong with the settings is told where they are read again.
    with contextlib.suppress(Exception):
        order = json.loads(said)
        # The user's functions are found where the parent finds them, behind everything else.
        sys.path += [place for place in order.get("path", []) if place not in sys.path]
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
        runner.run(serve(sock, order["settings"], parent, memory, order.get("shared", 0)))


if __name__ == "__main__":
    main()
