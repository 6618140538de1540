"""S3 and what speaks like it: s3fs and botocore find credentials and sign, aiohttp does the rest.

A presigned URL leaves Range and If-Match unsigned, so one signature serves every range of an
object, and the bytes take the same path as those of https, at a third of the CPU time that a
request through the SDK costs.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from streamrec.errors import AccessDenied, ConfigError, StoreError
from streamrec.stores.base import check_range
from streamrec.stores.boto_errors import translated
from streamrec.stores.filesystem import FilesystemBody, FilesystemStore
from streamrec.stores.http import READ_SECONDS, RangeClient
from streamrec.stores.pages import walk, with_retries
from streamrec.stores.presign import Presigner
from streamrec.stores.range_requests import RangeRequest
from streamrec.stores.refusals import Expired, WrongRegion
from streamrec.stores.s3_calls import GetObject, ListObjects
from streamrec.stores.s3_listing import parse_page
from streamrec.stores.s3_options import (
    check_options,
    reason_to_fall_back,
    s3_transport,
    sdk_options,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from streamrec.stores.base import ObjectInfo
    from streamrec.stores.http_body import HttpBody
    from streamrec.stores.pages import Page
    from streamrec.stores.presign import SignedUrl
    from streamrec.stores.s3_calls import Call

__all__ = ["S3Store", "split_url"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_URL = re.compile(r"(?si:s3a?://(arn:[^/]*:accesspoint[:/][^/]+|[^/]+)(?:/(.*))?)")


class S3Store:
    """Objects of S3, and of gateways and services that speak it.

    Args:
        storage_options: s3fs's: ``key``, ``secret``, ``token``, ``profile``, ``anon``,
            ``endpoint_url``, ``requester_pays``, ``client_kwargs``, ``config_kwargs``, …; and
            ``verify``, ``ca_bundle``, ``proxy``, as for http.
        read_seconds: How long the store may be silent in the middle of an answer.
        ahead: How many connections to open with that of the first listing.
        clock: Seconds since 1970.
        sleep: Waits that many seconds, before a page of a listing is asked for again.
    """

    def __init__(
        self,
        storage_options: Mapping[str, Any] | None = None,
        *,
        read_seconds: float = READ_SECONDS,
        ahead: int = 0,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._options = dict(storage_options or {})
        check_options(self._options)
        self._clock, self._sleep = clock, sleep
        self._signers: dict[str | None, Presigner] = {}
        self._regions: dict[str, str] = {}
        """Of buckets that turned out not to be where the options say."""
        self._s3fs_store: FilesystemStore | None = None
        self._warned_of: set[str] = set()
        """Buckets that are known to be read beside the fast path."""
        # A redirect leads to another host, for which the signature is worth nothing.
        transport = s3_transport(self._options)
        self._client = RangeClient(
            read_seconds=read_seconds, follow=False, transport=transport, ahead=ahead
        )

    @asynccontextmanager
    async def open_range(
        self, url: str, start: int, stop: int, *, etag: str | None = None
    ) -> AsyncIterator[HttpBody | FilesystemBody]:
        """Read a range; see :class:`Store`."""
        check_range(start, stop)
        beside = self._fall_back(split_url(url)[0], self._options)
        if beside is not None:
            async with beside.open_range(url, start, stop, etag=etag) as slow:
                yield slow
            return
        body = await self._open(url, start, stop, etag)
        try:
            yield body
        finally:
            body.close()

    async def list(self, prefix: str, *, recursive: bool = True) -> AsyncIterator[ObjectInfo]:
        """List a bucket, page by page; see :class:`Store`."""
        bucket, key = split_url(prefix)
        if key is None:
            raise ConfigError(f"{prefix}: a pattern may not stand for buckets; name one in full")
        beside = self._fall_back(bucket, {})  # no name has a version in it
        if beside is not None:
            async for info in beside.list(prefix, recursive=recursive):
                yield info
            return
        head, first = (
            prefix[: len(prefix) - len(key)],
            ListObjects(bucket, key, "" if recursive else "/"),
        )

        async def fetch(after: str, token: str) -> Page:
            call = replace(first, token=token, after="" if token else after.removeprefix(head))
            return await self._page(prefix, head, call)

        async with aclosing(walk(fetch, prefix)) as listing:
            async for info in listing:
                yield info

    async def aclose(self) -> None:
        """Close every connection."""
        try:
            while self._signers:
                _, signer = self._signers.popitem()
                await signer.aclose()
            if self._s3fs_store is not None:
                await self._s3fs_store.aclose()
        finally:
            await self._client.aclose()

    def _fall_back(self, bucket: str, options: Mapping[str, Any]) -> FilesystemStore | None:
        """What reads through s3fs, where presigned URLs would not do; said once a bucket."""
        reason = reason_to_fall_back(options, bucket)
        if reason is None:
            return None
        if bucket not in self._warned_of:
            self._warned_of.add(bucket)
            logger.warning(
                "s3://%s is read through s3fs, at several times the CPU time: %s", bucket, reason
            )
        if self._s3fs_store is None:
            once = sdk_options(self._options)
            self._s3fs_store = FilesystemStore("s3", once, translated=translated)
        return self._s3fs_store

    def _signer(self, bucket: str) -> Presigner:
        region = self._regions.get(bucket)
        if region not in self._signers:
            self._signers[region] = Presigner(self._options, region=region, clock=self._clock)
        return self._signers[region]

    async def _open(self, url: str, start: int, stop: int, etag: str | None) -> HttpBody:
        bucket, key = split_url(url)
        if not key:
            raise ConfigError(f"{url}: this names no object; shards are s3://bucket/key")

        async def get(signed: SignedUrl) -> HttpBody:
            request = RangeRequest(url, signed.address, start, stop, etag, signed.headers)
            return await self._client.open(request)

        return await self._request(url, GetObject(bucket, key), get)

    async def _page(self, url: str, head: str, call: ListObjects) -> Page:
        async def get(signed: SignedUrl) -> bytes:
            return await self._client.read_document(url, signed.address, signed.headers)

        first = not (call.after or call.token)
        document = await with_retries(
            lambda: self._request(url, call, get), self._sleep, first=first
        )
        return parse_page(url, head, document)

    async def _request(
        self, url: str, call: Call, send: Callable[[SignedUrl], Awaitable[_T]]
    ) -> _T:
        """Send; where the store says that the bucket is in another region, once more from there.

        Nobody is asked for a bucket's region beforehand: most are where the options say.
        """
        try:
            return await self._signed(url, call, send)
        except WrongRegion as wrong:
            self._regions[call.bucket] = wrong.region
        try:
            return await self._signed(url, call, send)
        except WrongRegion as wrong:
            raise StoreError(wrong.message, url=wrong.url) from None

    async def _signed(self, url: str, call: Call, send: Callable[[SignedUrl], Awaitable[_T]]) -> _T:
        """Send; a refused signature is renewed once, where that may help.

        It may where credentials have expired, and where the signature is an old one.
        """
        signer = self._signer(call.bucket)
        signed, fresh = await signer.sign(url, call)
        try:
            return await send(signed)
        except Expired:
            await signer.renew(signed)
        except AccessDenied:
            if fresh:
                raise
            signer.forget(call)
        signed, _ = await signer.sign(url, call)
        try:
            return await send(signed)
        except Expired as expired:
            raise AccessDenied(expired.message, url=expired.url) from None


def split_url(url: str) -> tuple[str, str | None]:
    """Bucket (or access point's ARN) and key; ``None``: there is no slash behind the bucket.

    Raises:
        ConfigError: There is no bucket.
    """
    found = _URL.fullmatch(url)
    if not found:
        raise ConfigError(f"{url}: this names no bucket; shards are s3://bucket/key")
    return found[1], found[2]
