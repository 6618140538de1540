"""A server that does nothing: it hangs up when the first bytes have come, unless they come slowly.

It shows what the attackers alone cost a machine that they share with the feeder. It prints its
port, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys

from streamrec.flow.bridge import new_event_loop

PATIENCE = 10.0
"""Seconds that it waits for bytes, as a feeder does."""


class Sink(asyncio.Protocol):
    """A connection that ends with its first bytes, or in time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.timer = asyncio.get_running_loop().call_later(PATIENCE, transport.close)

    def data_received(self, data: bytes) -> None:
        if len(data) > 1:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self.timer.cancel()


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve())
