"""A proxy between clients and a feeder that cuts and freezes their connections."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Self

from streamrec.flow.bridge import Bridge

if TYPE_CHECKING:
    import ssl
    from collections.abc import Coroutine

CHUNK = 1 << 16


class Proxy:
    """A proxy in a thread of its own.

    Args:
        upstream: The feeder's port on loopback, or the path of its socket; it may change.
        tls: The context of TLS that clients have to speak.
    """

    def __init__(self, upstream: int | str = 0, tls: ssl.SSLContext | None = None) -> None:
        self.upstream = upstream
        self.accepted = 0
        """The number of connections that came."""
        self.flips = False
        """True: change a byte of what the feeder sends next, once."""
        self.flips_hello = False
        """True: change a byte of what the next client sends first, once."""
        self.page = b""
        """Bytes for the next client, in place of the feeder's, once."""
        self._bridge = Bridge()
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server = self._bridge.call(self._start(tls))
        self.port = int(self._server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        """Reset all connections."""
        self._call(self._cut())

    def freeze(self) -> None:
        """Hand on nothing more, neither of old connections nor of new ones."""
        self._call(self._freeze())

    def thaw(self) -> None:
        """Hand on again: what came meanwhile, too."""
        self._call(self._thaw())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._bridge.close()

    def _call(self, coroutine: Coroutine[None, None, None]) -> None:
        self._bridge.call(coroutine)

    async def _start(self, tls: ssl.SSLContext | None) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._writers.add(writer)
        page, self.page = self.page, b""
        if page:
            await reader.read(CHUNK)
            writer.write(page)
            await writer.drain()
            writer.close()
            self._writers.discard(writer)
            return
        with contextlib.suppress(OSError):
            await self._flowing.wait()
            theirs, to_them = await self._connect()
            self._writers.add(to_them)
            if self.flips_hello:
                self.flips_hello = False
                hello = bytearray(await reader.read(CHUNK))
                hello[len(hello) // 2] ^= 1
                to_them.write(hello)
            with contextlib.suppress(OSError):
                await asyncio.gather(
                    self._pump(reader, to_them), self._pump(theirs, writer, may_flip=True)
                )
            self._end(to_them)
        self._end(writer)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self.upstream, str):
            return await asyncio.open_unix_connection(self.upstream)
        return await asyncio.open_connection("127.0.0.1", self.upstream)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, may_flip: bool = False
    ) -> None:
        while data := await reader.read(CHUNK):
            await self._flowing.wait()
            if self.flips and may_flip:
                self.flips = False
                data = data[:-1] + bytes([data[-1] ^ 1])
            writer.write(data)
            await writer.drain()
        raise ConnectionError("one end closed it, and the other is to notice")

    def _end(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.transport.abort()

    async def _cut(self) -> None:
        for writer in list(self._writers):
            self._end(writer)

    async def _freeze(self) -> None:
        self._flowing.clear()

    async def _thaw(self) -> None:
        self._flowing.set()

    async def _close(self) -> None:
        self._server.close()
        self._flowing.set()
        await self._cut()
