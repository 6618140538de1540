"""Signing of S3 requests with s3fs's options and session; signed URLs are kept for reuse."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from aiobotocore.session import AioSession
from botocore.exceptions import NoCredentialsError
from s3fs import S3FileSystem

from streamrec.stores.s3.s3_client import SigningClient
from streamrec.stores.s3.s3_options import sdk_options, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from streamrec.stores.s3.s3_client import Call

__all__ = ["Presigner", "SignedUrl"]

LIFETIME = 3600.0
"""Seconds for which a signature is valid, unless the credentials expire before."""
MAX_KEPT = 8192
"""Most signed URLs to keep, of 0.5 KB each; signing one takes 0.2 ms."""


class SignedUrl(NamedTuple):
    """A signed URL, with the headers to send."""

    address: str
    renew_at: float
    """The time to sign again, at half of its lifetime; seconds since 1970."""
    headers: Mapping[str, str]
    """The signed headers, which must be sent: requester pays, the key of an encrypted object."""
    era: int
    """The number of times that credentials had been renewed when it was signed."""

    def __repr__(self) -> str:
        return "<SignedUrl>"


class Presigner:
    """A signer for one region, for use in one event loop.

    Args:
        storage_options: s3fs's options.
        region: The bucket's region; ``None``: that of the options and the environment.
        clock: Returns seconds since 1970.
    """

    def __init__(
        self,
        storage_options: Mapping[str, Any],
        *,
        region: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        with translated("s3://"):
            self._filesystem = S3FileSystem(
                **sdk_options(storage_options, region=region),
                asynchronous=True,
                skip_instance_cache=True,  # the instance belongs to its loop, and aclose closes it
            )
        self._clock = clock
        self._kept: dict[tuple[str, str], SignedUrl] = {}
        self._client = SigningClient(self._filesystem)
        self._given_session = self._filesystem.session is not None
        self._era = 0
        self._finding = asyncio.Lock()
        self._renewing = asyncio.Lock()

    async def sign(self, url: str, call: Call) -> tuple[SignedUrl, bool]:
        """Return the signed URL of a request, and whether it was signed only now.

        Args:
            url: The object or prefix, for errors.
            call: The request. Signed URLs of objects are kept.

        Raises:
            AccessDenied: There are no credentials.
            ConfigError: s3fs does not understand the options.
        """
        kept = self._kept.get(call.place)
        if kept is not None and self._clock() < kept.renew_at:
            return kept, False
        with translated(url):
            signed = await self._sign(call)
        if call.method == "get_object":
            self._keep(call, signed)
        return signed, True

    def forget(self, call: Call) -> None:
        """Forget the request's signed URL."""
        self._kept.pop(call.place, None)

    async def renew(self, refused: SignedUrl) -> None:
        """Look up credentials again, unless that was done since the refused URL was signed.

        The session is replaced too, because it remembers the files and variables that it has read.
        """
        async with self._renewing:
            if refused.era != self._era:
                return
            with translated("s3://"):
                if not self._given_session:
                    self._filesystem.session = None
                await self._client.renew()
            self._era += 1
            self._kept.clear()

    async def credentials(self) -> dict[str, Any]:
        """Return the credentials as obstore names them.

        Raises:
            AccessDenied: There are none.
        """
        filesystem = self._filesystem
        if filesystem.key:
            static = {"access_key_id": filesystem.key, "secret_access_key": filesystem.secret}
            return {**static, "token": filesystem.token, "expires_at": None}
        with translated("s3://"):
            found = await self._found()
            if found is None:
                raise NoCredentialsError
            frozen = await found.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": getattr(found, "_expiry_time", None),
        }

    async def aclose(self) -> None:
        """Close the connections of botocore's client, where there is one."""
        await self._client.aclose()

    def _keep(self, call: Call, signed: SignedUrl) -> None:
        self.forget(call)
        if len(self._kept) >= MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[call.place] = signed

    async def _sign(self, call: Call) -> SignedUrl:
        era, lifetime = self._era, await self._lifetime()
        address, headers = await self._client.sign(call, lifetime)
        return SignedUrl(address, self._clock() + lifetime / 2, headers, era)

    def _session(self) -> AioSession:
        """Return s3fs's session, which knows the profile; make it as s3fs would."""
        if self._filesystem.session is None:
            self._filesystem.session = AioSession(**self._filesystem.kwargs)
        return self._filesystem.session

    async def _found(self) -> Any:
        """Return the session's credentials, looked up by one task at a time."""
        async with self._finding:
            return await self._session().get_credentials()

    async def _lifetime(self) -> float:
        """Return a signature's lifetime in seconds; it expires with its credentials."""
        filesystem = self._filesystem
        if filesystem.anon or filesystem.key or "aws_access_key_id" in filesystem.client_kwargs:
            return LIFETIME
        credentials = await self._found()
        if credentials is None:
            return LIFETIME  # signing will raise NoCredentialsError
        await credentials.get_frozen_credentials()  # renews them if they are about to expire
        expiry: datetime | None = getattr(credentials, "_expiry_time", None)
        if expiry is None:
            return LIFETIME
        return max(1.0, min(LIFETIME, expiry.timestamp() - self._clock()))
