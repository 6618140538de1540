"""S3's control plane: s3fs finds the credentials, botocore signs, and signatures are kept."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from botocore.exceptions import NoCredentialsError
from s3fs import S3FileSystem

from streamrec.stores.boto_errors import translated
from streamrec.stores.s3_options import sdk_options

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from datetime import datetime

__all__ = ["Presigner", "SignedUrl"]

LIFETIME = 3600.0
"""Seconds that a signature is good for, where the credentials live as long."""
AWS_HOST = ".amazonaws.com"
MAX_KEPT = 8192
"""Signed URLs, of about 0.5 KB each; signing one anew costs about half a millisecond."""
MAX_ATTEMPTS = 4
"""Of a listing's requests: one page that fails must not begin the listing again."""


class SignedUrl(NamedTuple):
    """Where an object is fetched."""

    address: str
    renew_at: float
    """Seconds since 1970: half of its life is then over."""
    headers: Mapping[str, str]
    """What was signed with it, and must be sent: who pays, the key of an encrypted object."""
    era: int
    """How often credentials had been found anew by then."""

    def __repr__(self) -> str:
        return "<SignedUrl>"


class Presigner:
    """One S3 client, for one region, in the loop that first uses it.

    Args:
        storage_options: s3fs's.
        region: Where the bucket is; ``None``: what the options and the environment say.
        clock: Seconds since 1970.
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
                **sdk_options(storage_options, region=region, attempts=MAX_ATTEMPTS),
                asynchronous=True,
                skip_instance_cache=True,  # an instance belongs to its loop, and is closed with us
            )
        # Retries are botocore's here; s3fs would repeat all of them five times.
        self._filesystem.retries = 1
        self._clock = clock
        self._kept: dict[tuple[str, str], SignedUrl] = {}
        self._client: Any = None
        self._headers: dict[str, str] = {}
        self._era = 0
        self._renewing = asyncio.Lock()
        self._retired: list[Any] = []
        """Clients with credentials of the past; a listing may still be under way in one."""

    async def sign(self, url: str, bucket: str, key: str) -> tuple[SignedUrl, bool]:
        """The URL of an object's GET, and whether it was signed only now.

        Args:
            url: The object, for errors.
            bucket: Its bucket.
            key: Its key.

        Raises:
            AccessDenied: There are no credentials.
            ConfigError: s3fs does not understand the options.
        """
        kept = self._kept.get((bucket, key))
        if kept is not None and self._clock() < kept.renew_at:
            return kept, False
        with translated(url):
            signed = await self._sign(bucket, key)
        self.forget(bucket, key)
        if len(self._kept) >= MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[bucket, key] = signed
        return signed, True

    def forget(self, bucket: str, key: str) -> None:
        """Have the object's URL signed anew when it is needed next."""
        self._kept.pop((bucket, key), None)

    async def renew(self, refused: SignedUrl) -> None:
        """Find credentials anew, unless that was done since the refused URL was signed.

        A session remembers what it read from files and environment; others may have replaced it.
        """
        async with self._renewing:
            if refused.era != self._era:
                return
            self._retired.append(await self._ready_client())
            with translated("s3://"):
                await self._filesystem.set_session(refresh=True)
            self._era += 1
            self._kept.clear()

    async def credentials(self) -> dict[str, Any]:
        """The credentials themselves, for who signs in another way: as obstore names them.

        Raises:
            AccessDenied: There are none.
        """
        await self._ready_client()
        filesystem = self._filesystem
        if filesystem.key:
            static = {"access_key_id": filesystem.key, "secret_access_key": filesystem.secret}
            return {**static, "token": filesystem.token, "expires_at": None}
        with translated("s3://"):
            found = await filesystem.session.get_credentials()
            if found is None:
                raise NoCredentialsError
            frozen = await found.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": getattr(found, "_expiry_time", None),
        }

    async def pages(
        self, url: str, bucket: str, prefix: str, delimiter: str
    ) -> AsyncIterator[list[dict[str, Any]]]:
        """The entries of a listing, a page at a time; see S3's ``ListObjectsV2``."""
        query = {"Bucket": bucket, "Prefix": prefix, "Delimiter": delimiter}
        query |= self._filesystem.req_kw
        token: dict[str, str] = {}
        while True:
            with translated(url):
                page = await self._filesystem._call_s3(  # noqa: SLF001 - s3fs lists no single pages itself
                    "list_objects_v2", **query, **token
                )
            yield page.get("Contents", [])
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    async def aclose(self) -> None:
        """Close the client's connections."""
        # Asking for the client would make one.
        clients = [*self._retired, getattr(self._filesystem, "_s3", None)]
        self._retired.clear()
        for client in clients:
            if client is not None:
                await client.close()

    async def _sign(self, bucket: str, key: str) -> SignedUrl:
        client = await self._ready_client()
        era, lifetime = self._era, await self._lifetime()
        address = await client.generate_presigned_url(
            "get_object",
            # Anew each time: botocore changes them.
            Params=self._filesystem._get_s3_method_kwargs(  # noqa: SLF001 - as its own calls do
                client.get_object, Bucket=bucket, Key=key
            ),
            ExpiresIn=int(lifetime),
        )
        return SignedUrl(address, self._clock() + lifetime / 2, self._headers, era)

    async def _ready_client(self) -> Any:
        client = await self._filesystem.set_session()
        if client is not self._client:
            self._client = client
            _use_own_region(client)
            client.meta.events.register_last("before-sign.s3.GetObject", self._look_on)
        return client

    def _look_on(self, request: Any, **_: object) -> None:
        """Keep S3's own headers while botocore signs them: the URL does not hold their values.

        They follow from the options, and are the same for every object.
        """
        names = [name for name in request.headers if name.lower().startswith("x-amz-")]
        self._headers = {name: request.headers[name] for name in names}

    async def _lifetime(self) -> float:
        """Seconds: a signature dies with the credentials that made it."""
        filesystem = self._filesystem
        if filesystem.anon or filesystem.key or "aws_access_key_id" in filesystem.client_kwargs:
            return LIFETIME
        credentials = await filesystem.session.get_credentials()
        if credentials is None:
            return LIFETIME  # signing will refuse
        await credentials.get_frozen_credentials()  # renews them where that is due
        expiry: datetime | None = getattr(credentials, "_expiry_time", None)
        if expiry is None:
            return LIFETIME
        return max(1.0, min(LIFETIME, expiry.timestamp() - self._clock()))


def _use_own_region(client: Any) -> None:
    """Have botocore presign for the region's own host.

    By default it takes ``bucket.s3.amazonaws.com``, which answers with a redirect, that is with
    another host than the signed one, for buckets that are new or elsewhere. It leaves that where
    the addressing style is said to be virtual; the client's endpoints are settled by then, so
    nothing else changes.
    """
    config = client.meta.config
    style = (config.s3 or {}).get("addressing_style", "auto")
    if style == "auto" and (urlsplit(client.meta.endpoint_url).hostname or "").endswith(AWS_HOST):
        config.s3 = {**(config.s3 or {}), "addressing_style": "virtual"}
