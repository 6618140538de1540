"""Connections from a client to its feeder: over TCP, a Unix socket, or a socket that is there."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from streamrec.errors import FeederLost
from streamrec.feeder.address import Address
from streamrec.feeder.connection import AsyncConnection

if TYPE_CHECKING:
    from streamrec.wire.protocol import Connection

__all__ = ["connect", "connect_async", "connect_unix"]

CONNECT_TIMEOUT = 20.0


def connect(address: str | socket.socket) -> socket.socket:
    """Return a socket that is connected to a feeder; a ready-made one as it is.

    Raises:
        FeederLost: The feeder cannot be reached.
    """
    if isinstance(address, socket.socket):
        return address
    place = Address.parse(address)
    try:
        if place.path is None:
            sock = socket.create_connection((place.host, place.port), CONNECT_TIMEOUT)
        else:
            sock = connect_unix(place.path)
    except OSError as error:
        raise _failed(place, error) from None
    return sock


def connect_unix(path: str) -> socket.socket:
    """Return a socket that is connected to the one at a path."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(CONNECT_TIMEOUT)
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


async def connect_async(address: str | socket.socket, machine: Connection) -> AsyncConnection:
    """Return a connection to a feeder, for asyncio; errors as of :func:`connect`."""
    loop = asyncio.get_running_loop()

    def connection() -> AsyncConnection:
        return AsyncConnection(machine)

    if isinstance(address, socket.socket):
        address.setblocking(False)
        return (await loop.connect_accepted_socket(connection, address))[1]
    place = Address.parse(address)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            if place.path is not None:
                return (await loop.create_unix_connection(connection, place.path))[1]
            return (await loop.create_connection(connection, str(place.host), place.port or 0))[1]
    except OSError as error:  # a TimeoutError is one too
        raise _failed(place, error) from None


def _failed(place: Address, error: OSError) -> FeederLost:
    reason = error.strerror or str(error) or type(error).__name__
    return FeederLost(
        f"cannot connect to {place}: {reason}; check that a feeder runs there and can be reached"
    )
