"""Sends and receives bytes with ``sendall`` and ``recv_into``, and does nothing else.

``python -m bench.feeding.bare serve`` is the server, which sends batches of the size that a
client asks for; without arguments it is a process of clients.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import struct
import sys
import threading
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.feeding import KEPT
from bench.feeding.host import main as host

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUEST = struct.Struct("<Q")


class Came(NamedTuple):
    """A batch that has come."""

    records: int
    nbytes: int


def serve() -> None:
    """Send to all who come, until the input ends."""
    server = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(json.dumps({"listen": server.getsockname()}), flush=True)
    threading.Thread(target=_accept, args=(server,), daemon=True).start()
    sys.stdin.read()


def _accept(server: socket.socket) -> None:
    while True:
        client, _ = server.accept()
        threading.Thread(target=_send, args=(client,), daemon=True).start()


def _send(client: socket.socket) -> None:
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    [size] = REQUEST.unpack(client.recv(REQUEST.size, socket.MSG_WAITALL))
    try:
        for batch in itertools.cycle(ready(size)):
            client.sendall(batch)
    except OSError:  # the client has left
        client.close()


@cache
def ready(size: int) -> list[bytes]:
    """Return some batches, which all clients share."""
    return [os.urandom(size) for _ in range(KEPT)]


def connected(arguments: dict[str, Any]) -> Iterator[Came]:
    """Receive batches into the same memory again and again."""
    came = Came(arguments["records"], arguments["nbytes"])
    with socket.create_connection(tuple(arguments["address"])) as sock:
        sock.sendall(REQUEST.pack(came.nbytes))
        buffer = memoryview(bytearray(came.nbytes))
        while sock.recv_into(buffer, 0, socket.MSG_WAITALL) == came.nbytes:
            yield came


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        host({"bare": connected}, lambda came: came.records, lambda came: came.nbytes)
