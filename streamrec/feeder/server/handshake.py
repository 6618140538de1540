"""The beginning of a connection at the feeder: the handshake of TLS, where that is spoken."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from functools import partial
from socket import MSG_PEEK, SHUT_WR
from typing import TYPE_CHECKING

from streamrec.errors import FeederLost, FeederRefused
from streamrec.feeder.access.server_context import present_handshakes
from streamrec.feeder.client.connection import LINGER
from streamrec.feeder.server.listener import readable
from streamrec.wire.frame import MAGIC

if TYPE_CHECKING:
    import socket

    from streamrec.feeder.access.server_context import Handshake
    from streamrec.feeder.client.connection import AsyncConnection


async def greet(sock: socket.socket, connection: AsyncConnection) -> None:
    """Put a connection on a socket that was accepted, without TLS."""
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.connect_accepted_socket(lambda: connection, sock)


async def shake_hands(
    sock: socket.socket, connection: AsyncConnection, context: ssl.SSLContext, seconds: float
) -> FeederRefused | None:
    """Put a connection on a socket that was accepted, with TLS.

    Args:
        sock: The socket.
        connection: What to put on it; a reason to end it ends the handshake, too.
        context: The certificate, and what is asked of clients.
        seconds: The time that a client has for it.

    Returns:
        ``None``; or, where the client does not speak TLS, what to tell it. It is connected then,
        too.

    Raises:
        TimeoutError: The client took too long.
        FeederRefused: The handshake failed, and the client knows why.
        FeederLost: The connection is gone.
    """
    sock.setblocking(False)
    try:
        async with asyncio.timeout(seconds) as shaking:
            connection.on_broken = partial(shaking.reschedule, 0)
            if connection.broken is not None:
                raise connection.broken
            if await _speaks_plainly(sock):
                await greet(sock, connection)
                return FeederRefused(
                    "this is a port for TLS, and the client speaks without; connect to tls:// in "
                    "place of tcp://",
                    code="tls",
                )
            await _shake(sock, connection, context)
    except TimeoutError:
        if connection.broken is None:
            raise
        raise connection.broken from None
    finally:
        connection.on_broken = None
    return None


async def _speaks_plainly(sock: socket.socket) -> bool:
    """Return True if a client begins without TLS, with a frame; its bytes stay unread."""
    await readable(sock)
    try:
        first = sock.recv(1, MSG_PEEK)
    except OSError as error:
        raise FeederLost(f"the connection broke: {error}") from None
    if not first:
        raise FeederLost("the connection was closed by the other side")
    return first == MAGIC[:1]


async def _shake(sock: socket.socket, connection: AsyncConnection, context: ssl.SSLContext) -> None:
    loop = asyncio.get_running_loop()
    made: list[Handshake] = []
    present_handshakes.set(made)  # for this task, and what the loop does for it
    with sock.dup() as spare:  # the loop closes the other
        try:
            await loop.connect_accepted_socket(lambda: connection, sock, ssl=context)
        except ssl.SSLError as error:
            await _say(spare, b"".join(one.alert for one in made))
            reason = getattr(error, "verify_message", None) or error.reason or "no reason is known"
            raise FeederRefused(f"the handshake of TLS failed: {reason}", code="tls") from None
        except OSError as error:
            # Event loops do not send the alert of a client that distrusts the certificate.
            raise FeederRefused(
                f"the client left in the handshake of TLS ({error}), so it may not trust this "
                "feeder's certificate; give its authority as the client's tls=",
                code="tls",
            ) from None


async def _say(sock: socket.socket, alert: bytes) -> None:
    """Send the last bytes, and wait until the client has read them: a reset would discard them."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):  # a TimeoutError is one too
        async with asyncio.timeout(LINGER):
            await loop.sock_sendall(sock, alert)
            sock.shutdown(SHUT_WR)
            while await loop.sock_recv(sock, 1 << 16):
                pass
