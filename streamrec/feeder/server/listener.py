"""Listening sockets, without asyncio's servers.

``asyncio.Server`` of Python 3.11 loses a connection that is accepted in the very turn of the loop
in which the server is closed: the client then waits for ever. Accepting is a dozen lines.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import stat
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from streamrec.errors import ConfigError
from streamrec.feeder.access.address import Address, is_loopback, join_host
from streamrec.flow.cleanup import until_done

if TYPE_CHECKING:
    from collections.abc import Callable

BACKLOG = 512
PAUSE = 1.0
"""Seconds without accepting, where the system has no more files to give."""
DESCRIPTOR = struct.Struct("i")
FIRST_BYTES = 64 << 10
"""The most bytes that come with a descriptor; a HELLO is far shorter."""

BURST = 1024
"""Connections that are accepted as fast as they come: as many as a feeder serves by default."""
RATE = 100
"""Connections a second beyond that; a handshake takes a millisecond of the loop that serves all."""
REFILL = 0.1
"""Seconds without accepting, where more have come than that."""

log = logging.getLogger("streamrec.feeder")


class Listener:
    """Accepts connections while it is open, in the running loop.

    Args:
        sock: Bound; owned from now on.
        accepted: Called with each connection, which is then its own.
        burst: Connections that are accepted as fast as they come, 10 or more.
        at_once: The most connections that are accepted in one turn of the loop.
    """

    def __init__(
        self,
        sock: socket.socket,
        accepted: Callable[[socket.socket], object],
        burst: float = BURST,
        at_once: float = math.inf,
    ) -> None:
        self.address = address_of(sock)
        self._socket = sock
        self._accepted = accepted
        self._loop = asyncio.get_running_loop()
        # By its inode the file is told from one that another feeder puts at the same path.
        self._inode = _inode(self.address)
        self._pause: asyncio.TimerHandle | None = None
        self._lacks_files = False
        self._at_once = at_once
        self._burst = self._allowed = burst
        """Connections that may be accepted at once, and now."""
        self._counted_at = self._loop.time()
        sock.setblocking(False)
        # Listening begins here, when somebody accepts: until then clients are refused at once.
        sock.listen(BACKLOG)
        self._resume()

    @property
    def lacks_files(self) -> bool:
        """True while nobody is accepted, because the system has no more files to give."""
        return self._lacks_files

    def close(self) -> None:
        """Accept no more, and remove the socket's file; closing again changes nothing."""
        if self._socket.fileno() < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        # Unless another feeder has put its own file there.
        if self._inode is not None and _inode(self.address) == self._inode:
            Path(str(self.address.path)).unlink(missing_ok=True)

    def _resume(self) -> None:
        self._pause, self._lacks_files = None, False
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        # All who wait: with hundreds of sessions a turn of the loop takes a quarter of a second.
        accepted = 0
        while self._is_allowed():
            if accepted >= self._at_once:
                return  # the loop calls again in its next turn
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._wait_for_files(error)
                return
            accepted += 1
            self._allowed -= 1
            self._accepted(connection)
        # Strangers who come and come again would take the loop from those who are served.
        self._wait(REFILL)

    def _is_allowed(self) -> bool:
        now = self._loop.time()
        self._allowed = min(self._burst, self._allowed + RATE * (now - self._counted_at))
        self._counted_at = now
        return self._allowed >= 1

    def _wait_for_files(self, error: OSError) -> None:
        log.error("cannot accept clients: %s; raise the limit of open files", error.strerror)
        self._lacks_files = True
        self._wait(PAUSE)

    def _wait(self, seconds: float) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._pause = self._loop.call_later(seconds, self._resume)


def bind(place: Address) -> socket.socket:
    """Return a socket that is bound to an address.

    Raises:
        ConfigError: It is taken, or not ours to listen at.
    """
    try:
        if place.path is not None:
            _remove_stale(Path(place.path))
            return _bind_socket(socket.AF_UNIX, place.path)
        answers = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
        # A name with several addresses is listened at at its first one.
        family, _, _, _, address = answers[0]
        return _bind_socket(family, address)
    except OSError as error:
        raise ConfigError(f"cannot listen at {place}: {error.strerror or error}") from None


async def bind_in_thread(place: Address) -> socket.socket:
    """Return a socket as :func:`bind` does, which looks names up; errors as of that."""
    loop = asyncio.get_running_loop()
    binding = loop.run_in_executor(None, bind, place)
    try:
        await until_done(binding)
    except asyncio.CancelledError:
        # The socket is bound by then, and nobody else knows of it.
        if binding.exception() is None:
            await until_done(loop.run_in_executor(None, _unbind, binding.result(), place))
        raise
    return binding.result()


def _unbind(sock: socket.socket, place: Address) -> None:
    sock.close()
    if place.path is not None:
        Path(place.path).unlink(missing_ok=True)


def _bind_socket(family: int, address: Any) -> socket.socket:
    sock = socket.socket(family)
    try:
        # After a restart the port may be bound while connections of before are still in TIME_WAIT.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock


def _remove_stale(path: Path) -> None:
    """Remove the socket file of a feeder that was killed; a living one's is left alone."""
    if not path.exists() or not stat.S_ISSOCK(path.stat().st_mode):
        return  # anything else makes `bind` fail, as it should
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)


def address_of(sock: socket.socket) -> Address:
    """Return the address that a socket is bound to."""
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return Address(path=cast("str", name))
    return Address(host=name[0], port=name[1])


async def first_bytes(sock: socket.socket) -> tuple[bytes, int | None]:
    """Wait for the first bytes of a client on this machine, and a descriptor that comes with them.

    No event loop receives descriptors: so this is done before one has the socket.

    Args:
        sock: A Unix socket that does not block.

    Returns:
        The bytes, none at the end of the stream; and the descriptor, which is the caller's to
        close. The system closes any other.
    """
    while True:
        await readable(sock)
        try:
            data, extras, _, _ = sock.recvmsg(
                FIRST_BYTES, socket.CMSG_LEN(DESCRIPTOR.size), socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError):
            continue
        except OSError:  # whoever reads on finds it too
            return b"", None
        return data, next(filter(None, map(_descriptor, extras)), None)


def _descriptor(extra: tuple[int, int, bytes]) -> int | None:
    level, kind, content = extra
    if (level, kind) != (socket.SOL_SOCKET, socket.SCM_RIGHTS) or len(content) < DESCRIPTOR.size:
        return None
    return int(DESCRIPTOR.unpack_from(content)[0])


async def readable(sock: socket.socket) -> None:
    """Return when something can be received from a socket, which no transport has yet."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock.fileno())


def remote_host(sock: socket.socket) -> str | None:
    """Return the address of the machine at the other end; ``None``: it is this one."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        host = str(sock.getpeername()[0])
    except OSError:  # it has gone already
        return None
    return None if is_loopback(host) else host


def peer_of(sock: socket.socket) -> str:
    """Return the address at the other end, for people."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return "a process of this machine"
    try:
        host, port = sock.getpeername()[:2]
    except OSError:  # it has gone already
        return "unknown"
    return join_host(host, port)


def _inode(place: Address) -> int | None:
    try:
        return Path(place.path).stat().st_ino if place.path else None
    except FileNotFoundError:
        return None
