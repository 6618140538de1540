"""Connections from a client to its feeder: over TCP, TLS, a Unix socket, or one that is there."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from dataclasses import replace
from typing import TYPE_CHECKING

from streamrec.errors import ConfigError, FeederLost
from streamrec.feeder.access.tls import client_context, failure
from streamrec.feeder.client.connection import AsyncConnection

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from streamrec.errors import FeederRefused
    from streamrec.feeder.access.address import Address
    from streamrec.wire.protocol import Connection

CONNECT_TIMEOUT = 10.0


def look_up(addresses: Iterable[Address]) -> list[Address]:
    """Return the addresses that names stand for now: one for each machine behind a name.

    They are in an order that all clients share. What cannot be looked up stays as it is, and the
    attempt to connect there says why.
    """
    return [found for place in addresses for found in _found(place)]


async def look_up_async(
    addresses: Sequence[Address],
    timeout: float = CONNECT_TIMEOUT,  # noqa: ASYNC109 - as for a connection
) -> list[Address]:
    """Return what :func:`look_up` does, in threads; after some seconds, the names as they are."""
    if not any(map(_is_name, addresses)):
        return list(addresses)
    try:
        async with asyncio.timeout(timeout):
            found = await asyncio.gather(*(asyncio.to_thread(_found, one) for one in addresses))
    except TimeoutError:
        return list(addresses)
    return [one for some in found for one in some]


def _is_name(place: Address) -> bool:
    if place.host is None:
        return False
    try:
        ipaddress.ip_address(place.host)
    except ValueError:
        return True
    return False


def _found(place: Address) -> list[Address]:
    if not _is_name(place):
        return [place]
    try:
        answers = socket.getaddrinfo(
            place.host, place.port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
        )
    except OSError:
        return [place]
    return [replace(place, ip=ip) for ip in sorted({str(answer[4][0]) for answer in answers})]


def connect(
    address: Address | socket.socket, timeout: float | None = CONNECT_TIMEOUT
) -> socket.socket:
    """Return a socket that is connected to a feeder; a ready-made one as it is.

    Raises:
        FeederLost: The feeder cannot be reached.
        ConfigError: It speaks TLS, which plain code leaves to an event loop.
    """
    if isinstance(address, socket.socket):
        return address
    if address.tls:
        raise ConfigError(f"{address}: TLS is spoken by an engine process, or in an event loop")
    try:
        if address.path is not None:
            return connect_unix(address.path, timeout)
        return socket.create_connection((address.ip or address.host, address.port), timeout)
    except OSError as error:
        raise _failed(address, error) from None


def connect_unix(path: str, timeout: float | None = CONNECT_TIMEOUT) -> socket.socket:
    """Return a socket that is connected to the one at a path."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(timeout)
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


async def connect_async(
    address: Address | socket.socket,
    machine: Connection,
    *,
    timeout: float | None = CONNECT_TIMEOUT,  # noqa: ASYNC109 - one for all kinds of addresses
    tls: ssl.SSLContext | None = None,
) -> AsyncConnection:
    """Return a connection to a feeder, for asyncio.

    Args:
        address: Where it is, or a connected socket.
        machine: This end of the protocol.
        timeout: Seconds to wait, for the handshake of TLS too.
        tls: The context of TLS; ``None``: one that trusts the system's authorities.

    Raises:
        FeederLost: The feeder cannot be reached.
        FeederRefused: It does not speak TLS, or one of the two certificates is refused.
    """
    loop = asyncio.get_running_loop()
    where = None if isinstance(address, socket.socket) else str(address)

    def connection() -> AsyncConnection:
        return AsyncConnection(machine, where=where)

    if isinstance(address, socket.socket):
        address.setblocking(False)
        return (await loop.connect_accepted_socket(connection, address))[1]
    context = (tls or client_context({})) if address.tls else None
    name = address.host if address.tls else None
    host, port = str(address.ip or address.host), address.port or 0
    try:
        async with asyncio.timeout(timeout):
            if address.path is not None:
                return (await loop.create_unix_connection(connection, address.path))[1]
            made = loop.create_connection(connection, host, port, ssl=context, server_hostname=name)
            return (await made)[1]
    except OSError as error:  # a TimeoutError is one too
        raise _failed(address, error) from None


def _failed(place: Address, error: OSError) -> FeederLost | FeederRefused:
    if isinstance(error, ssl.SSLError):
        return failure(error, str(place))
    reason = error.strerror or str(error) or type(error).__name__
    return FeederLost(
        f"cannot connect to {place}: {reason}; check that a feeder runs there and can be reached"
    )
