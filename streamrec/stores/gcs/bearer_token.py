"""The bearer token of Google's credentials, renewed before it expires."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import requests
from google.auth.credentials import TokenState
from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.requests import Request

from streamrec.errors import AccessDenied, StoreError, StoreUnavailable
from streamrec.stores.base import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["BearerToken"]

TOKEN_SECONDS = 10.0
"""Timeout of a request for a token, in seconds. google-auth's default is two minutes, which cannot
be interrupted."""
PAUSE = 10.0
"""Seconds between attempts to renew a token that is still valid."""


class BearerToken:
    """The authorization headers of one credential, for use in one event loop.

    Args:
        credentials: google-auth's credentials; ``None``: anonymous.
        clock: Returns seconds, monotonic.
    """

    def __init__(self, credentials: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._credentials = credentials
        self._clock = clock
        self._renewing = asyncio.Lock()
        self._wait_until = 0.0

    def __repr__(self) -> str:
        kind = type(self._credentials).__name__ if self._credentials else "anonymous"
        return f"<BearerToken {kind}>"

    async def headers(self, url: str) -> Mapping[str, str]:
        """Return the headers to send now; ``url`` is for errors.

        Raises:
            AccessDenied: The credentials are not valid any more.
            StoreUnavailable: The server that renews them cannot be reached.
        """
        if self._is_due():
            async with self._renewing:
                if self._is_due():  # another task may have renewed it meanwhile
                    await self._renew_in_time(url)
        return self._applied()

    async def renew(self, url: str, refused: Mapping[str, str]) -> Mapping[str, str] | None:
        """Return headers to send in place of those that the store refused; ``None``: no others."""
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
        # A token is stale 225 s before its end: a machine's metadata server returns the old one
        # until 240 s before.
        state = self._credentials and self._credentials.token_state
        is_stale = state is TokenState.STALE and self._clock() >= self._wait_until
        return is_stale or state is TokenState.INVALID

    async def _renew_in_time(self, url: str) -> None:
        try:
            await self._refresh(url)
        except StoreError:
            if self._credentials.token_state is TokenState.INVALID:
                raise
        # If it failed, or the new token expires as soon, the token is used until the next attempt.
        self._wait_until = self._clock() + PAUSE

    async def _refresh(self, url: str) -> None:
        try:
            await in_thread(_refresh, self._credentials)
        except GoogleAuthError as error:
            # Its text may quote the server's response, which may hold a token.
            kind = type(error).__name__
            if isinstance(error, TransportError) or error.retryable:
                raise StoreUnavailable(
                    f"the access token cannot be renewed ({kind}); check the network", url=url
                ) from None
            raise AccessDenied(
                f"the access token is not valid, and cannot be renewed ({kind}); log in again, or "
                "give other credentials as 'token' in storage_options",
                url=url,
            ) from None


def _refresh(credentials: Any) -> None:
    """Renew the credentials. Blocks on Google's servers, or on the machine's metadata server."""
    with requests.Session() as session:
        credentials.refresh(partial(Request(session), timeout=TOKEN_SECONDS))
