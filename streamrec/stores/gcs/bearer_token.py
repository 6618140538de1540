"""The bearer token of Google's credentials, renewed when it has expired or is refused."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from google.auth.credentials import TokenState
from google.auth.exceptions import GoogleAuthError, TransportError

from streamrec.errors import AccessDenied, StoreUnavailable
from streamrec.stores.base.protocol import in_thread
from streamrec.stores.gcs.gcs_errors import own_meaning

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN_SECONDS = 10.0
"""Timeout of a request for a token, in seconds. google-auth's default is two minutes, which cannot
be interrupted."""


class BearerToken:
    """The authorization headers of one credential, for use in one event loop.

    Args:
        credentials: google-auth's credentials; ``None``: anonymous.
    """

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials
        self._renewing = asyncio.Lock()

    def __repr__(self) -> str:
        kind = type(self._credentials).__name__ if self._credentials else "anonymous"
        return f"<BearerToken {kind}>"

    async def headers(
        self, url: str, refused: Mapping[str, str] | None = None
    ) -> Mapping[str, str]:
        """Return the headers to send now, with a new token if the old one does not serve.

        Args:
            url: The object, for errors.
            refused: Headers that the store has refused.

        Raises:
            AccessDenied: The credentials are not valid any more.
            StoreUnavailable: The server that renews them cannot be reached.
        """
        if self._credentials is None:
            return {}
        async with self._renewing:  # another task may have renewed the token meanwhile
            invalid = self._credentials.token_state is TokenState.INVALID
            if invalid or (refused and refused == self._make_headers()):
                await self._refresh(url)
            return self._make_headers()

    def _make_headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        self._credentials.apply(headers)
        return headers

    async def _refresh(self, url: str) -> None:
        try:
            await in_thread(_refresh, self._credentials)
        except GoogleAuthError as error:
            if (missing := own_meaning(url, error)) is not None:
                raise missing from None
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
    import requests  # many credentials are never renewed
    from google.auth.transport.requests import Request

    with requests.Session() as session:
        credentials.refresh(partial(Request(session), timeout=TOKEN_SECONDS))
