"""A proxy that injects devstore's faults in front of a store that has none.

The client's Host travels on, so that signatures stay good.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Self

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from streamrec.devstore.api import error_document
from streamrec.devstore.refusals import Faults, Refusal, flip_byte, sending_steps
from streamrec.devstore.sending import reset
from streamrec.flow.bridge import Bridge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from streamrec.devstore.refusals import FaultEffects, FaultRule, Step

HOP_BY_HOP = ("Connection", "Keep-Alive", "Transfer-Encoding", "TE", "Upgrade", "Expect")


class FaultProxy:
    """A proxy in a thread of its own.

    Args:
        upstream: The store's endpoint.
    """

    def __init__(self, upstream: str) -> None:
        self.requests = 0
        """The number of ranged GETs, with those that were refused."""
        self.before: Callable[[int], object] = _nothing
        """A function that is called with the number of each ranged GET, from 1."""
        self.endpoint = ""
        self._upstream = upstream
        self._faults = Faults()
        self._thread = ExitStack()
        self._running = AsyncExitStack()

    def fail(self, *rules: FaultRule) -> None:
        """Inject these faults from now on."""
        self._faults = Faults(rules)

    @property
    def applied(self) -> int:
        """The number of requests that were changed."""
        return sum(self._faults.applied)

    def __enter__(self) -> Self:
        bridge = self._thread.enter_context(Bridge())
        self._thread.callback(lambda: bridge.call(self._running.aclose()))
        bridge.call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.close()

    async def _start(self) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        session = aiohttp.ClientSession(auto_decompress=False, connector=connector)
        self._session = await self._running.enter_async_context(session)
        server = web.Server(self._answer, access_log=None, handler_cancellation=True)
        runner = web.ServerRunner(server, shutdown_timeout=0.01)
        await runner.setup()
        self._running.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        host, port = runner.addresses[0][:2]
        self.endpoint = f"http://{host}:{port}"

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request with the store's reply, or with a fault."""
        range_header = request.headers.get("Range")
        if range_header is not None:
            self.requests += 1
            self.before(self.requests)
        effects = self._faults.choose(request.method, request.path, range_header)
        if effects.refuse:
            reset(request)
            return web.Response()
        if effects.status is not None:
            return _refused(request, effects)
        try:
            return await self._pass_on(request, effects)
        except ConnectionError:
            return web.Response()  # the client has gone

    async def _pass_on(self, request: web.BaseRequest, effects: FaultEffects) -> web.StreamResponse:
        asked = self._session.request(
            request.method,
            self._upstream + request.raw_path,
            headers=_end_to_end(request.headers),
            data=await request.read(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            allow_redirects=False,
        )
        async with asked as answer:
            headers = _end_to_end(answer.headers)
            if effects.content_range is not None and "Content-Range" in headers:
                headers["Content-Range"] = effects.content_range
            headers.update(effects.headers)
            body = await answer.read()
            response = web.StreamResponse(status=answer.status, headers=headers)
            if answer.status == 206 and effects.partial_status is not None:
                response.set_status(effects.partial_status)
            await response.prepare(request)
            if answer.status < 300 and request.method != "HEAD":
                await _send(request, response, _changed(body, answer.headers, effects), effects)
            elif request.method != "HEAD":
                await response.write(body)
            return response


async def _send(
    request: web.BaseRequest, response: web.StreamResponse, body: bytes, effects: FaultEffects
) -> None:
    for step in sending_steps(len(body), effects):
        if step.act == "send":
            await response.write(body[step.start : step.stop])
        else:
            await _interrupt(request, step)


async def _interrupt(request: web.BaseRequest, step: Step) -> None:
    transport = request.transport
    if step.act == "stall":
        await asyncio.get_running_loop().create_future()  # until the client gives up
    elif step.act == "reset":
        reset(request)
    elif transport is not None:
        transport.close()


def _changed(body: bytes, headers: Mapping[str, str], effects: FaultEffects) -> bytes:
    place = effects.flip_object_at
    if place is None:
        return body
    first = int(headers.get("Content-Range", "bytes 0-").split()[1].split("-")[0])
    return bytes(flip_byte(body, place - first))


def _refused(request: web.BaseRequest, effects: FaultEffects) -> web.Response:
    later = {} if effects.retry_after is None else {"Retry-After": str(effects.retry_after)}
    assert effects.status is not None
    document = error_document(Refusal(effects.status, effects.code), request.path, "1")
    return web.Response(
        status=effects.status, body=document, headers={"Content-Type": "application/xml", **later}
    )


def _end_to_end(headers: Mapping[str, str]) -> CIMultiDict[str]:
    kept = CIMultiDict(headers)
    for name in HOP_BY_HOP:
        kept.popall(name, None)
    return kept


def _nothing(_: int) -> None:
    """Do nothing."""
