"""A server whose responses a test writes, and a store to read from it."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

from aiohttp import web

from streamrec.stores.http.http_store import HttpStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

__all__ = ["opened", "serving"]


@asynccontextmanager
async def serving(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[str]:
    """Serve the handler's responses; yield the server's URL."""
    application = web.Application()
    application.router.add_get("/{name:.*}", handler)
    runner = web.AppRunner(application, shutdown_timeout=0.01, auto_decompress=False)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


def opened(options: Mapping[str, object] | None = None) -> aclosing[HttpStore]:
    """Return a context of a store, which it closes."""
    return aclosing(HttpStore(options))
