"""The beginning of an engine process; :mod:`streamrec.feeder.engine` has the rest of its life.

The libraries take most of the time to the first batch to import, so this file itself imports none.
What reads the store is imported in a thread beside everything else: the interpreter's lock is not
held while the system's certificates are loaded (40 ms). Nor is garbage looked for meanwhile, where
there is none (35 ms); and what is imported stays, so it is never looked through again.
"""

from __future__ import annotations

import contextlib
import gc
import json
import signal
import socket
import sys
import threading
from importlib import import_module
from typing import Any

__all__ = ["main"]


def main() -> None:
    """The child's whole life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    order = json.loads(sys.stdin.buffer.read())
    # The user's functions are found where the parent finds them, behind everything else.
    sys.path += [place for place in order.get("path", []) if place not in sys.path]
    _import_all(order["settings"])
    gc.freeze()
    gc.enable()
    sock, *memory = map(int, sys.argv[1:])
    _run(socket.socket(fileno=sock), memory, order)


def _import_all(settings: dict[str, Any]) -> None:
    store = threading.Thread(target=_import_store, args=(settings["source"],))
    store.start()
    import_module("streamrec.feeder.engine")
    import_module("streamrec.pipeline.dataset")
    store.join()


def _import_store(source: str | list[str]) -> None:
    # What is wrong with the source, or missing here, is told when the dataset is opened.
    with contextlib.suppress(Exception):
        import_module("streamrec.stores.open").import_store(
            source if isinstance(source, str) else source[0]
        )


def _run(sock: socket.socket, memory: list[int], order: dict[str, Any]) -> None:
    import asyncio

    from streamrec.feeder.engine import serve
    from streamrec.flow.bridge import new_event_loop

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve(sock, order["settings"], order["parent"], *memory))


if __name__ == "__main__":
    main()
