"""Connections that are open before they are needed.

A connection takes a round trip and a millisecond of CPU time, and over TLS another round trip and
some milliseconds more. The first ranges need one each, so that these would come between the listing
and the first batch; while the store thinks about the listing there is nothing else to do.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import aiohttp

from streamrec.flow.cleanup import end

if TYPE_CHECKING:
    from aiohttp import ClientRequest, ClientTimeout
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

__all__ = ["EagerConnector"]

DNS_SECONDS = 300


class EagerConnector(aiohttp.TCPConnector):
    """Connections for a session; how many at a time is the caller's affair.

    Args:
        ahead: How many to open once the first request has its own. They take the way of that
            request; not through a proxy.
    """

    def __init__(self, ahead: int = 0) -> None:
        super().__init__(limit=0, ttl_dns_cache=DNS_SECONDS)
        self._ahead = ahead
        self._opening: set[asyncio.Task[None]] = set()

    async def connect(
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: ClientTimeout,  # noqa: ASYNC109 - aiohttp's signature
    ) -> Connection:
        """A connection for a request, an open one or a new one."""
        connection = await super().connect(req, traces, timeout)
        if self._ahead and req.proxy is None:
            count, self._ahead = self._ahead, 0
            # The request itself goes first; then all begin: none gets what another has opened.
            self._opening = {asyncio.create_task(self._open(req, timeout)) for _ in range(count)}
        return connection

    async def stop(self) -> None:
        """Open no more."""
        await end(*self._opening)

    async def _open(self, req: ClientRequest, timeout: ClientTimeout) -> None:  # noqa: ASYNC109
        # Who needs a connection opens one, and tells what is wrong.
        with contextlib.suppress(aiohttp.ClientError, OSError):
            (await super().connect(req, [], timeout)).release()
