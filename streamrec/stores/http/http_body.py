"""The body of a response over aiohttp, and the release of its connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiohttp

from streamrec.errors import StoreUnavailable
from streamrec.stores.base.foreign_errors import meaning_of
from streamrec.stores.http.receivers import BodyReceiver

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.stores.http.range_requests import RangeResponse


class HttpBody:
    """The bytes of one response that belong to the range."""

    def __init__(self, answer: RangeResponse, response: aiohttp.ClientResponse) -> None:
        self.info = answer.info
        self._response = response
        self._skip = answer.skip
        self._left = answer.length
        self._ready = memoryview(b"")
        self._receiver: BodyReceiver | None = None
        self._has_exact_length = response.content_length == answer.skip + answer.length

    async def fill(self, view: memoryview, on_received: Callable[[int], None]) -> None:
        """Fill a view, mostly without resuming the task for each piece; see :class:`RangeBody`."""
        while view and self._left:
            try:
                count = await self._receive(view, on_received)
            except StoreUnavailable:
                raise
            except (aiohttp.ClientError, OSError) as error:
                raise meaning_of(self.info.url, error) from None
            if not count:
                raise StoreUnavailable(
                    f"the body ended {self._left} bytes early; check the network", url=self.info.url
                )
            self._left -= count
            view = view[count:]

    async def _receive(self, view: memoryview, on_received: Callable[[int], None]) -> int:
        """Receive some bytes, usually until the view is full; return 0 at an early end."""
        content = self._response.content
        while not self._ready:
            self._ready = memoryview(content.read_nowait())
            if not self._ready and self._can_receive_directly():
                if self._receiver is None:
                    self._receiver = BodyReceiver(self._response, self._left)
                return await self._receiver.fill(view, on_received)
            self._ready = self._ready or memoryview(await content.readany())
            if not self._ready:
                return 0
            # A server that sends the whole object sends bytes that come before the range.
            skipped = min(self._skip, len(self._ready))
            self._skip -= skipped
            self._ready = self._ready[skipped:]
        count = min(len(view), len(self._ready), self._left)
        view[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        on_received(count)
        return count

    def _can_receive_directly(self) -> bool:
        """Return whether the connection is held and will give the range's bytes and no others."""
        return self._has_exact_length and not self._skip and self._response.connection is not None

    def close(self) -> None:
        """Release the connection if the body is at its end, else close it."""
        give_back(self._response)


def give_back(response: aiohttp.ClientResponse) -> None:
    """Release the connection if the body is at its end, else close it."""
    # The rest of the body would be read as the beginning of the next response.
    if response.content.is_eof():
        response.release()
    else:
        response.close()
