"""A connector that opens connections before they are needed.

A connection takes a round trip and 1 ms of CPU time; over TLS, another round trip and some
milliseconds more. The first ranges need one each. They are opened during the first listing, so that
they do not delay the first batch.
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
    """A connector without a limit that opens some connections after its first one.

    Args:
        ahead: Number of connections to open once the first request has its own, to the same
            server. None are opened ahead through a proxy.
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
        """Return a connection for a request, an idle one or a new one."""
        connection = await super().connect(req, traces, timeout)
        if self._ahead and req.proxy is None:
            count, self._ahead = self._ahead, 0
            # All tasks start before any has connected, so that each opens a connection of its own.
            self._opening = {asyncio.create_task(self._open(req, timeout)) for _ in range(count)}
        return connection

    async def stop(self) -> None:
        """Cancel the connections that are being opened ahead."""
        await end(*self._opening)

    async def _open(self, req: ClientRequest, timeout: ClientTimeout) -> None:  # noqa: ASYNC109
        # A failure is ignored: the request that needs a connection tries again and reports it.
        with contextlib.suppress(aiohttp.ClientError, OSError):
            (await super().connect(req, [], timeout)).release()
