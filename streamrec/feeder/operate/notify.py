"""Messages of the daemon to systemd (``Type=notify`` and ``notify-reload``); see ``sd_notify(3)``.

A message is a datagram of lines to the socket that ``NOTIFY_SOCKET`` names. Without that variable
nothing is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

from streamrec.flow.cleanup import end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

LOOK_EVERY = 5.0
"""Seconds between two looks at the daemon's state, for STATUS."""

log = logging.getLogger("streamrec.feeder")


class Notifier:
    """Sends messages to the service manager, as ``sd_notify(3)`` has them.

    Args:
        address: The socket's path; one that begins with ``@`` is in the abstract namespace.
            ``None``: there is nobody to tell.
        watchdog: Seconds in which a sign of life is expected; ``None``: none is.
    """

    def __init__(self, address: str | None = None, watchdog: float | None = None) -> None:
        self._address = f"\0{address[1:]}" if address and address[0] == "@" else address
        self._interval = LOOK_EVERY if watchdog is None else min(LOOK_EVERY, watchdog / 2)
        self._has_watchdog = watchdog is not None
        self._status = ""

    @classmethod
    def of(cls, variables: Mapping[str, str] | None = None) -> Self:
        """Return the notifier that a service manager's variables ask for."""
        variables = os.environ if variables is None else variables
        address = variables.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return cls()
        for_us = variables.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        microseconds = variables.get("WATCHDOG_USEC", "")
        is_asked = for_us and microseconds.isdecimal() and int(microseconds) > 0
        return cls(address, int(microseconds) / 1e6 if is_asked else None)

    def ready(self) -> None:
        """Say that the daemon serves, or serves again after a reload."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Say that the configuration is read anew; :meth:`ready` says that this is done."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Say that the daemon drains."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """Show a line about the daemon in ``systemctl status``."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text.replace(chr(10), ' ')}")

    @asynccontextmanager
    async def reporting(self, state: Callable[[], str]) -> AsyncIterator[None]:
        """Send the state when it changes, and signs of life, while the block runs.

        They come from the event loop: when that hangs, they do not.
        """
        if self._address is None:
            yield
            return
        task = asyncio.get_running_loop().create_task(self._report(state))
        try:
            yield
        finally:
            await end(task)

    async def _report(self, state: Callable[[], str]) -> None:
        while True:
            self.status(state())
            if self._has_watchdog:
                self._send("WATCHDOG=1")
            await asyncio.sleep(self._interval)

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            log.warning("the service manager cannot be told %s: %s", lines[0], error)
