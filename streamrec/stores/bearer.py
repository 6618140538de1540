"""The bearer token of Google's credentials: kept, and renewed before it expires."""

from __future__ import annotations

import asyncio
from datetime import UTC
from typing import TYPE_CHECKING, Any

from streamrec.errors import AccessDenied, StoreError, StoreUnavailable
from streamrec.stores.base import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["BearerToken"]

MARGIN = 225.0
"""Seconds before its expiry that a token is renewed. google-auth's own: a machine's metadata server
hands out the old token until 240 s before it ends."""
TOKEN_SECONDS = 10.0
"""For an answer about a token: google-auth waits for two minutes, which nothing can cut short."""
PAUSE = 10.0
"""Seconds between attempts to renew a token that still serves."""


class BearerToken:
    """The headers of one credential, for one loop.

    Args:
        credentials: google-auth's; ``None``: nobody is logged in.
        clock: Seconds since 1970.
    """

    def __init__(self, credentials: Any | None, clock: Callable[[], float]) -> None:
        self._credentials = credentials
        self._clock = clock
        self._renewing = asyncio.Lock()
        self._wait_until = 0.0

    def __repr__(self) -> str:
        kind = type(self._credentials).__name__ if self._credentials else "anonymous"
        return f"<BearerToken {kind}>"

    async def headers(self, url: str) -> Mapping[str, str]:
        """The headers to send now; see :class:`~streamrec.stores.http.Authorization`."""
        if self._is_due():
            async with self._renewing:
                if self._is_due():  # whoever waited finds it done
                    await self._renew_in_time(url)
        return self._applied()

    async def renew(self, url: str, refused: Mapping[str, str]) -> Mapping[str, str] | None:
        """Others than the refused ones; see :class:`~streamrec.stores.http.Authorization`."""
        if self._credentials is None:
            return None
        async with self._renewing:
            if self._applied() == refused:
                await self._refresh(url)
            return self._applied()

    def _applied(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        if self._credentials is not None:
            self._credentials.apply(headers)
        return headers

    def _is_due(self) -> bool:
        if self._credentials is None:
            return False
        left = self._seconds_left()
        return left <= 0 or (left < MARGIN and self._clock() >= self._wait_until)

    def _seconds_left(self) -> float:
        credentials = self._credentials
        if credentials is None or not credentials.token:
            return 0.0
        expiry = credentials.expiry  # without a zone; google-auth means UTC
        if expiry is None:
            return float("inf")
        return float(expiry.replace(tzinfo=UTC).timestamp() - self._clock())

    async def _renew_in_time(self, url: str) -> None:
        try:
            await self._refresh(url)
        except StoreError:
            if self._seconds_left() <= 0:
                raise
        # Failed, or the new one lives hardly longer: the token at hand serves meanwhile.
        self._wait_until = self._clock() + PAUSE

    async def _refresh(self, url: str) -> None:
        from google.auth.exceptions import GoogleAuthError, TransportError

        try:
            await in_thread(_refresh, self._credentials)
        except GoogleAuthError as error:
            # Its text may quote the server's answer, and so a token.
            kind = type(error).__name__
            if isinstance(error, TransportError) or error.retryable:
                raise StoreUnavailable(
                    f"the token cannot be renewed ({kind}); check the network", url=url
                ) from None
            raise AccessDenied(
                f"the token is not valid, and cannot be renewed ({kind}); log in again, or give "
                "other credentials as 'token' in storage_options",
                url=url,
            ) from None


def _refresh(credentials: Any) -> None:
    """Blocks: on Google's servers, or the machine's metadata server."""
    import requests
    from google.auth.transport.requests import Request

    class Bounded(Request):
        def __call__(self, *args: Any, **values: Any) -> Any:
            given = {"timeout": TOKEN_SECONDS, **values}
            return super().__call__(*args, **given)  # type: ignore[no-untyped-call]

    with requests.Session() as session:
        credentials.refresh(Bounded(session))
