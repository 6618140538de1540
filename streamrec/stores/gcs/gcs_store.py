"""The store of Google Cloud Storage: gcsfs finds credentials and endpoint, aiohttp reads and lists.

gcsfs does not list, because it would repeat a request with a refused token for 30 s, renew the
token in the event loop, and ignore ``Retry-After``. It does upload. The parts of a resumable upload
follow one another, as its session takes no others (Google, "Resumable uploads").
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from streamrec.errors import ConfigError, ObjectNotFound, StoreMisbehaved
from streamrec.stores.base.new_object import UploadSession, date_of
from streamrec.stores.base.pages import Page, walk
from streamrec.stores.base.protocol import (
    ObjectInfo,
    check_new_object,
    check_range,
    in_thread,
    let_pass,
    split_bucket,
    split_object,
    version_of,
)
from streamrec.stores.base.troubles import Expired, plain
from streamrec.stores.fsspec.filesystem_writer import FilesystemWriter
from streamrec.stores.http.http_ranges import RangedGet
from streamrec.stores.http.http_store import RangeClient
from streamrec.stores.http.transport import OPTIONS, check_proxies, transport_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from gcsfs.core import GCSFileSystem

    from streamrec.stores.base.protocol import BeforeRequest, NewObject
    from streamrec.stores.http.http_ranges import HttpBody


KIND = "application/octet-stream"
SMALL = 1 << 19
"""The bytes of the largest object that one request writes, which gcsfs copies to that end."""


class GCSSession(UploadSession):
    """The requests of one resumable upload.

    Args:
        filesystem: gcsfs's.
        path: ``bucket/key``.
    """

    # Google takes the bytes of a resumable upload in order.
    at_once = 1

    def __init__(self, filesystem: Any, path: str) -> None:
        self.loop = filesystem.loop
        self._files = filesystem
        self._path = path
        self._bucket, self._key, _ = filesystem.split_path(path)
        self._location: str | None = None
        self._offset = 0

    async def put_whole(self, data: bytes) -> None:
        """Write an object of less than one part."""
        from gcsfs.core import simple_upload

        if len(data) > SMALL:
            self._location = await self._begin()
            await self.complete(data)
            return
        await simple_upload(self._files, self._bucket, self._key, data)
        self._forget()

    async def put_part(self, number: int, data: bytes) -> None:
        """Send a part."""
        if not number:
            self._location = await self._begin()
        end = self._offset + len(data)
        await self._send(data, f"bytes {self._offset}-{end - 1}/*")
        self._offset = end

    async def complete(self, rest: bytes) -> None:
        """Send the last part, and make the object visible."""
        end = self._offset + len(rest)
        # Without bytes, the total alone ends the upload.
        span = f"{self._offset}-{end - 1}" if rest else "*"
        await self._send(rest, f"bytes {span}/{end}")
        self._location = None
        self._forget()

    async def look_up(self) -> tuple[int, datetime]:
        """Return the size of the object that is there now, and when it was written."""
        self._forget()
        found = await self._files._call(  # noqa: SLF001
            "GET", "b/{}/o/{}", self._bucket, self._key, json_out=True
        )
        return int(found["size"]), datetime.fromisoformat(found["updated"])

    async def abort(self) -> None:
        """Give up the upload."""
        location, self._location = self._location, None
        if location is not None:
            await self._files._call("DELETE", location)  # noqa: SLF001

    async def _begin(self) -> str:
        path = f"{self._files._location}/upload/storage/v1/b/{quote(self._bucket)}/o"  # noqa: SLF001
        headers, _ = await self._files._call(  # noqa: SLF001
            "POST",
            f"{path}?name={quote(self._key, safe='')}",
            uploadType="resumable",
            json={"name": self._key},
            headers={"X-Upload-Content-Type": KIND},
        )
        self.begun = date_of(headers)
        location: str = headers["Location"]
        return location

    async def _send(self, data: bytes, span: str) -> None:
        from gcsfs.core import UnclosableBytesIO

        headers = {"Content-Range": span, "Content-Type": KIND, "Content-Length": str(len(data))}
        # gcsfs sends again after a failure, when aiohttp would have closed a usual BytesIO.
        answer, _ = await self._files._call(  # noqa: SLF001
            "PUT", self._location, headers=headers, data=UnclosableBytesIO(data)
        )
        end = self._offset + len(data)
        # The store may keep fewer bytes than were sent, and says in Range how many.
        received = answer.get("Range", "").rpartition("-")[2]
        if span.endswith("/*") and received != str(end - 1):
            raise OSError(f"the store has bytes up to {received or 'none'} of the {end} sent")

    def _forget(self) -> None:
        """Have listings ask the store again."""
        self._files.invalidate_cache(self._path)


_T = TypeVar("_T")

FIELDS = "nextPageToken,items(name,size,generation,contentEncoding)"
"""Fields to request in a listing; by default, each entry has two dozen more."""
_AS_STORED = {"Accept-Encoding": "gzip"}
"""Header without which GCS decompresses gzip-encoded objects and ignores the range.
https://cloud.google.com/storage/docs/transcoding"""


class GCSStore:
    """The store of Google Cloud Storage; an object's version is its generation.

    Args:
        storage_options: gcsfs's: ``token``, ``project``, ``endpoint_url``, ``requester_pays``, …;
            and those of :mod:`streamrec.stores.http.transport`.
        sleep: Waits that many seconds before a page of a listing is requested again.
        before_request: Called before each request.
    """

    def __init__(
        self,
        storage_options: Mapping[str, Any] | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        before_request: BeforeRequest = let_pass,
    ) -> None:
        # gcsfs's own session, which writes, takes none of our options for the transport.
        self._given = given = dict(storage_options or {})
        self._transport = transport_of(given)
        self._options = {name: given[name] for name in given if name not in OPTIONS}
        self._sleep = sleep
        self._before_request = before_request
        self._opening = asyncio.Lock()
        self._client: RangeClient | None = None
        self._writer = FilesystemWriter(
            self._find,
            session=GCSSession,
            is_anonymous=lambda files: files.credentials.credentials is None,
        )

    def _find(self, url: str) -> tuple[GCSFileSystem, str]:
        """Return gcsfs's filesystem for writing, and the path in it."""
        from streamrec.stores.gcs.google_credentials import filesystem

        split_bucket(url)
        check_proxies()
        return filesystem(self._given), url.partition("://")[2]

    @asynccontextmanager
    async def open_range(
        self, url: str, start: int, stop: int, *, etag: str | None = None
    ) -> AsyncIterator[HttpBody]:
        """Read a range; see :class:`Store`."""
        check_range(start, stop)
        with closing(await self._open(url, start, stop, etag)) as body:
            yield body

    def list(self, prefix: str, *, recursive: bool = True) -> AsyncIterator[ObjectInfo]:
        """List a bucket, page by page; see :class:`Store`."""
        bucket, name = split_bucket(prefix)
        if name is None:
            raise ConfigError(f"{prefix}: a bucket cannot be a pattern; name the bucket in full")
        head = prefix[: len(prefix) - len(name)]
        query = {"prefix": name, "fields": FIELDS} | ({} if recursive else {"delimiter": "/"})

        async def fetch(after: str, token: str) -> Page:
            more = {"startOffset": after.removeprefix(head)} if after else {}
            more |= {"pageToken": token} if token else {}
            page = await self._page(prefix, head, bucket, query | more)
            # startOffset is inclusive: the first object may be the one that is already known.
            known = bool(page.objects) and page.objects[0].url == after
            return page._replace(objects=page.objects[known:])

        return walk(fetch, prefix, self._sleep)

    def put(self, url: str, *, make_directory: bool = False, spooled: bool = False) -> NewObject:
        """Begin an object, which gcsfs sends in parts; see :class:`Store`."""
        check_new_object(url)
        return self._writer.put(url, make_directory=make_directory, spooled=spooled)

    async def delete(self, url: str) -> None:
        """Delete an object; see :class:`Store`."""
        self._before_request(0)
        await self._writer.delete(url)

    async def copy(self, url: str, other: str, size: int) -> None:  # noqa: ARG002 - of any size
        """Have the store copy an object; see :class:`Copying`."""
        self._before_request(0)
        await self._writer.copy(url, other)

    async def aclose(self) -> None:
        """Close every connection."""
        self._writer.close()
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _connect(self) -> RangeClient:
        # The first requests come at once, and each would else make a client of its own.
        async with self._opening:
            if self._client is None:
                self._client = await self._make_client()
            return self._client

    async def _make_client(self) -> RangeClient:
        from streamrec.stores.gcs.google_credentials import filesystem, plain_login

        if (login := await in_thread(plain_login, self._options)) is not None:
            return self._client_of(login.credentials, login.endpoint, {})
        found = await in_thread(lambda: filesystem(self._options, asynchronous=True))
        if set(found.session_kwargs) - {"trust_env"}:
            raise ConfigError(
                "storage_options: 'session_kwargs' applies to gcsfs's own session, which does not "
                "read shards; set proxies and certificates by 'proxy' and 'verify'"
            )
        endpoint = found.base.removesuffix("/storage/v1/").rstrip("/")
        return self._client_of(found.credentials.credentials, endpoint, _payer(found))

    def _client_of(self, credentials: Any, endpoint: str, payer: dict[str, str]) -> RangeClient:
        # Imports google-auth, which was imported in the thread.
        from streamrec.stores.gcs.bearer_token import BearerToken

        self._bearer = BearerToken(credentials)
        self._endpoint, self._payer = endpoint, payer
        # No redirects: another host must not see the token.
        return RangeClient(
            follow=False, transport=self._transport, before_request=self._before_request
        )

    async def _open(self, url: str, start: int, stop: int, etag: str | None) -> HttpBody:
        bucket, name = split_object(url)

        async def get(client: RangeClient, headers: Mapping[str, str]) -> HttpBody:
            latest = RangedGet(
                url,
                self._media(bucket, name),
                start,
                stop,
                etag,
                {**_AS_STORED, **headers},
                version_header="x-goog-generation",
            )
            if etag is None:
                return await client.open(latest)
            pinned = replace(latest, address=self._media(bucket, name, generation=etag))
            try:
                return await client.open(pinned)
            except ObjectNotFound:
                # That generation is gone; the response for the latest one names the new one.
                return await client.open(latest)

        return await self._send_authorized(url, get)

    async def _page(self, url: str, head: str, bucket: str, query: Mapping[str, str]) -> Page:
        async def get(client: RangeClient, headers: Mapping[str, str]) -> bytes:
            address = self._address(f"/storage/v1/b/{quote(bucket, safe='')}/o", query)
            return await client.read_document(url, address, headers)

        return _parse_page(url, head, await self._send_authorized(url, get))

    async def _send_authorized(
        self, url: str, send: Callable[[RangeClient, Mapping[str, str]], Awaitable[_T]]
    ) -> _T:
        """Send a request, and once more with a new token if the store refuses the old one."""
        client = await self._connect()
        headers: Mapping[str, str] | None = None
        while True:
            refused, headers = headers, await self._bearer.headers(url, headers)
            try:
                return await send(client, headers)
            except Expired as error:
                if refused is not None or not headers:  # no headers: anonymous
                    raise plain(error) from None

    def _media(self, bucket: str, name: str, **query: str) -> str:
        """Return the address of an object's content."""
        # The API wants slashes in names percent-encoded as well.
        path = f"/download/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}"
        return self._address(path, {"alt": "media", **query})

    def _address(self, path: str, query: Mapping[str, str]) -> str:
        return f"{self._endpoint}{path}?{urlencode({**query, **self._payer}, quote_via=quote)}"


def _payer(filesystem: GCSFileSystem) -> dict[str, str]:
    """Return the query parameter for the project that pays, if the bucket's requesters pay."""
    payer = filesystem.requester_pays
    if not payer:
        return {}
    project = payer if isinstance(payer, str) else filesystem.project
    if not project:
        raise ConfigError(
            "storage_options: 'requester_pays' names no project; set it to the project that pays, "
            "or set 'project'"
        )
    return {"userProject": project}


def _parse_page(url: str, head: str, document: bytes) -> Page:
    try:
        page = json.loads(document)
        objects = [_describe(head, entry) for entry in page.get("items", [])]
        return Page(objects, page.get("nextPageToken"))
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise StoreMisbehaved(
            "the response is not a listing of GCS; check endpoint_url", url=url
        ) from None


def _describe(head: str, entry: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(
        head + entry["name"],
        int(entry["size"]),
        version_of(generation=entry.get("generation")),
        entry.get("contentEncoding") or None,
    )
