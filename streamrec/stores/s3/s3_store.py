"""The store of S3 and compatible services: aiohttp reads and lists with signed URLs.

A presigned URL does not sign Range and If-Match, so that one signature serves every range of an
object. Reading through aiohttp takes a third of the CPU time of the SDK.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from contextlib import asynccontextmanager, closing, suppress
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET

from streamrec.errors import AccessDenied, ConfigError, ObjectChanged, StoreError, StoreMisbehaved
from streamrec.stores.base.pages import Page, walk
from streamrec.stores.base.protocol import (
    ObjectInfo,
    bare_version,
    check_new_object,
    check_range,
    let_pass,
    same_version,
    split_bucket,
    split_object,
    version_of,
)
from streamrec.stores.base.troubles import Expired, WrongRegion, plain
from streamrec.stores.fsspec.filesystem_store import FilesystemBody, FilesystemStore
from streamrec.stores.fsspec.filesystem_writer import FilesystemWriter
from streamrec.stores.http.http_ranges import RangedGet
from streamrec.stores.http.http_store import RangeClient
from streamrec.stores.s3.presign import Presigner, get_object, list_objects
from streamrec.stores.s3.s3_options import (
    check_options,
    reason_to_fall_back,
    s3_transport,
    sdk_options,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from xml.etree.ElementTree import Element

    from streamrec.stores.base.protocol import BeforeRequest, NewObject
    from streamrec.stores.http.http_ranges import HttpBody
    from streamrec.stores.s3.presign import SignedUrl, UnsignedRequest


def parse_page(url: str, head: str, document: bytes) -> Page:
    """Parse a ``ListBucketResult``; 1,000 objects take 3 ms.

    https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html

    Args:
        url: The listed prefix, for errors.
        head: The beginning of the URLs, before the key: ``s3://bucket/``.
        document: The response's body.

    Raises:
        StoreMisbehaved: The answer is not a valid listing.
    """
    try:
        return _read(head, _parse(document))
    except (ET.ParseError, TypeError, ValueError):
        raise StoreMisbehaved(
            "the response is not a listing of S3; check endpoint_url", url=url
        ) from None


def _parse(document: bytes) -> Element:
    # S3 sends no DOCTYPE. A document with one may define entities that expand without limit.
    if b"<!DOCTYPE" in document:
        raise ValueError("a listing has no DOCTYPE")
    root = ET.fromstring(document.decode())  # noqa: S314 - it defines no entities
    if root.tag.rpartition("}")[2] != "ListBucketResult":
        raise ValueError("the document is not a ListBucketResult")
    return root


def _read(head: str, root: Element) -> Page:
    space = root.tag[: root.tag.rfind("}") + 1]
    decode = _unquote if root.findtext(f"{space}EncodingType") == "url" else str
    objects = [_info(head, entry, space, decode) for entry in root.iter(f"{space}Contents")]
    if root.findtext(f"{space}IsTruncated") != "true":
        return Page(objects, None)
    token = root.findtext(f"{space}NextContinuationToken")
    if not token:
        raise ValueError("the listing is truncated, but has no continuation token")
    return Page(objects, token)


def _unquote(key: str) -> str:
    # In an encoded listing, S3 writes a space as a plus sign.
    return unquote_plus(key) if "%" in key or "+" in key else key


def _info(head: str, entry: Element, space: str, decode: Callable[[str], str]) -> ObjectInfo:
    facts = {child.tag: child.text for child in entry}
    size = facts.get(f"{space}Size")
    if f"{space}Key" not in facts or size is None:
        raise ValueError("an object has no key or no size")
    key = decode(facts[f"{space}Key"] or "")
    etag, modified = facts.get(f"{space}ETag"), facts.get(f"{space}LastModified")
    version = version_of(etag=etag, modified=modified, size=int(size))
    return ObjectInfo(head + key, int(size), version)


logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class S3Store:
    """The store of S3 and of compatible gateways and services.

    Args:
        storage_options: s3fs's: ``key``, ``secret``, ``token``, ``profile``, ``anon``,
            ``endpoint_url``, ``requester_pays``, ``client_kwargs``, ``config_kwargs``, …; and
            ``verify``, ``ca_bundle``, ``proxy``, as for http.
        clock: Returns seconds since 1970.
        sleep: Waits that many seconds before a page of a listing is requested again.
        before_request: Called before each request.
    """

    def __init__(
        self,
        storage_options: Mapping[str, Any] | None = None,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        before_request: BeforeRequest = let_pass,
    ) -> None:
        self._options = dict(storage_options or {})
        check_options(self._options)
        self._clock, self._sleep = clock, sleep
        self._before_request = before_request
        self._signers: dict[str | None, Presigner] = {}
        self._answered: set[tuple[str, str]] = set()
        """The URLs and versions that responses have named, not those that listings name."""
        self._listed_as: dict[tuple[str, str], str | None] = {}
        """The versions that responses name, by URL and the version that listings name instead."""
        self._confirming = defaultdict[tuple[str, str], asyncio.Lock](asyncio.Lock)
        """Held while a listing is asked again, so that one request does for all of an object's."""
        self._regions: dict[str, str] = {}
        """The regions of buckets that are not in the region of the options."""
        self._s3fs_store: FilesystemStore | None = None
        self._warned_of: set[str] = set()
        """The buckets for which the log has said that they are read through s3fs."""
        self._writer = FilesystemWriter(
            lambda url: (_uploads().writing_filesystem(url, self._options), _path_in(url)),
            session=lambda files, path: _uploads().S3Session(files, path),
            is_anonymous=lambda files: bool(files.anon),
        )
        # No redirects: the signature is not valid for another host.
        self._client = RangeClient(
            follow=False, transport=s3_transport(self._options), before_request=before_request
        )

    @asynccontextmanager
    async def open_range(
        self, url: str, start: int, stop: int, *, etag: str | None = None
    ) -> AsyncIterator[HttpBody | FilesystemBody]:
        """Read a range; see :class:`Store`."""
        check_range(start, stop)
        s3fs_store = self._fall_back(split_bucket(url)[0], self._options)
        if s3fs_store is not None:
            async with s3fs_store.open_range(url, start, stop, etag=etag) as slow:
                yield slow
            return
        with closing(await self._open_version(url, start, stop, etag)) as body:
            yield body

    def list(self, prefix: str, *, recursive: bool = True) -> AsyncIterator[ObjectInfo]:
        """List a bucket, page by page; see :class:`Store`."""
        bucket, key = split_bucket(prefix)
        if key is None:
            raise ConfigError(f"{prefix}: a bucket cannot be a pattern; name the bucket in full")
        s3fs_store = self._fall_back(bucket, {})  # listed names hold no versions
        if s3fs_store is not None:
            return s3fs_store.list(prefix, recursive=recursive)
        head, delimiter = prefix[: len(prefix) - len(key)], "" if recursive else "/"

        async def fetch(after: str, token: str) -> Page:
            begin = "" if token else after.removeprefix(head)
            call = list_objects(bucket, key, delimiter, token, begin)
            return await self._page(prefix, head, call)

        return walk(fetch, prefix, self._sleep)

    def put(self, url: str, *, make_directory: bool = False, spooled: bool = False) -> NewObject:
        """Begin an object, which s3fs sends in parts; see :class:`Store`."""
        check_new_object(url)
        return self._writer.put(url, make_directory=make_directory, spooled=spooled)

    async def delete(self, url: str) -> None:
        """Delete an object; see :class:`Store`."""
        self._before_request(0)
        await self._writer.delete(url)

    async def copy(self, url: str, other: str, size: int) -> None:
        """Have the store copy an object; see :class:`Copying`."""
        self._before_request(0)
        await self._writer.call(
            other, lambda files, path: _uploads().copy_object(files, _path_in(url), path, size)
        )

    async def remove_left(self, directory: str, prefixes: Sequence[str]) -> None:
        """Abort uploads of killed writers; see :class:`Cleaning`."""
        self._before_request(0)
        # Some stores do not list uploads, and not every user may; nobody sees what is left.
        with suppress(StoreError):
            await self._writer.call(
                directory, lambda files, path: _uploads().abort_uploads(files, path, prefixes)
            )

    async def aclose(self) -> None:
        """Close every connection."""
        self._writer.close()
        try:
            # Each is taken out first, so that a close which is cancelled can be gone on with.
            while self._signers:
                _, signer = self._signers.popitem()
                await signer.aclose()
            if self._s3fs_store is not None:
                await self._s3fs_store.aclose()
        finally:
            await self._client.aclose()

    def _fall_back(self, bucket: str, options: Mapping[str, Any]) -> FilesystemStore | None:
        """Return the store over s3fs if presigned URLs cannot be used; log it once a bucket."""
        reason = reason_to_fall_back(options, bucket)
        if reason is None:
            return None
        if bucket not in self._warned_of:
            self._warned_of.add(bucket)
            logger.warning(
                "s3://%s is read through s3fs, which takes several times the CPU time: %s",
                bucket,
                reason,
            )
        if self._s3fs_store is None:
            once = sdk_options(self._options)
            self._s3fs_store = FilesystemStore("s3", once, before_request=self._before_request)
        return self._s3fs_store

    def _signer(self, bucket: str) -> Presigner:
        region = self._regions.get(bucket)
        if region not in self._signers:
            self._signers[region] = Presigner(self._options, region=region, clock=self._clock)
        return self._signers[region]

    async def _open_version(self, url: str, start: int, stop: int, etag: str | None) -> HttpBody:
        """Open a range of a version, which may have another name in listings than in responses.

        Swift's S3 API lists an object of several parts with another ETag than it answers with. So
        a first response that disagrees is held against the listing once: the object is the same as
        long as that still names the version that is asked for.
        """
        pinned = etag if etag is None else self._listed_as.get((url, etag), etag)
        try:
            body = await self._open(url, start, stop, pinned)
        except ObjectChanged:
            if etag is None or pinned != etag:
                raise
            async with self._confirming[url, etag]:
                if (url, etag) not in self._listed_as and not await self._is_listed(url, etag):
                    raise
                body = await self._open(url, start, stop, self._listed_as.get((url, etag)))
                self._listed_as[url, etag] = body.info.etag
        if body.info.etag is not None:
            self._answered.add((url, bare_version(body.info.etag)))
        return body

    async def _is_listed(self, url: str, etag: str) -> bool:
        """Return whether a version that no response has named is in the listing now."""
        if (url, bare_version(etag)) in self._answered:
            return False
        bucket, key = split_bucket(url)
        call = list_objects(bucket, key or "", "", "", "")
        try:
            page = await self._page(url, url[: len(url) - len(key or "")], call)
        except StoreError as error:
            # Nobody knows then what is listed, and a caller that tries again asks again.
            if error.retryable:
                raise
            return False
        named = next((found.etag for found in page.objects if found.url == url), None)
        return named is not None and same_version(named, etag)

    async def _open(self, url: str, start: int, stop: int, etag: str | None) -> HttpBody:
        bucket, key = split_object(url)

        async def get(signed: SignedUrl) -> HttpBody:
            request = RangedGet(url, signed.address, start, stop, etag, signed.headers)
            return await self._client.open(request)

        return await self._request(url, get_object(bucket, key), get)

    async def _page(self, url: str, head: str, call: UnsignedRequest) -> Page:
        async def get(signed: SignedUrl) -> bytes:
            return await self._client.read_document(url, signed.address, signed.headers)

        return parse_page(url, head, await self._request(url, call, get))

    async def _request(
        self, url: str, call: UnsignedRequest, send: Callable[[SignedUrl], Awaitable[_T]]
    ) -> _T:
        """Sign and send a request.

        It is signed again if the bucket is in another region, the credentials have expired, or a
        kept signature is refused; once for each reason.
        """
        # Regions are not looked up beforehand, since most buckets are in that of the options.
        bucket, met = call.place[0], set[type[StoreError]]()
        while True:
            signer = self._signer(bucket)
            signed, fresh = await signer.sign(url, call)
            try:
                return await send(signed)
            except (WrongRegion, AccessDenied) as error:
                kind = type(error)
                # A signature that was made only now is not refused for its age: signing again would
                # not help.
                if kind in met or (fresh and kind is AccessDenied):
                    raise plain(error) from None
                met.add(kind)
                if isinstance(error, WrongRegion):
                    self._regions[bucket] = error.region
            if kind is Expired:
                await signer.renew(url, signed)
            elif kind is AccessDenied:
                signer.forget(call)


def _uploads() -> Any:
    """Return the module that writes by s3fs; called in threads, as its import takes long."""
    from streamrec.stores.s3 import s3_sdk

    return s3_sdk


def _path_in(url: str) -> str:
    """Return s3fs's path of a URL: ``bucket/key``."""
    return url.partition("://")[2]
