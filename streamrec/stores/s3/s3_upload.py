"""Multipart uploads to S3, and what writers need beside them, through s3fs.

Source: AWS, "Amazon S3 API Reference".
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiohttp.payload import Payload

from streamrec.stores.base.new_object import UploadSession, date_of
from streamrec.stores.base.pages import Page, Pages
from streamrec.stores.base.protocol import split_bucket
from streamrec.stores.fsspec.filesystem_writer import shared_filesystem
from streamrec.stores.http.transport import check_proxies
from streamrec.stores.s3.s3_options import writing_options
from streamrec.stores.s3.sdk_signer import check_login_files, new_session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from aiohttp.abc import AbstractStreamWriter

CHUNK = 1 << 20
"""Bytes of a request that are handed to the connection at once."""
ONE_COPY = 1 << 29
"""The bytes of the largest object that one request copies. S3 takes up to 5 GB; the answer may come
only when all is copied, and s3fs waits 15 s for it. From 150 MiB on, s3fs itself would copy in
parts of 50 MiB, one after the other."""


class S3Session(UploadSession):
    """The requests of one multipart upload.

    Args:
        filesystem: s3fs's.
        path: ``bucket/key``.
    """

    at_once = 4

    def __init__(self, filesystem: Any, path: str) -> None:
        self.loop = filesystem.loop
        bucket, key, _ = filesystem.split_path(path)
        self._files = filesystem
        self._path = path
        self._place = {"Bucket": bucket, "Key": key}
        self._beginning: asyncio.Task[str] | None = None
        self._etags: dict[int, str] = {}

    async def put_whole(self, data: bytes) -> None:
        """Write an object of less than one part."""
        body = _Body(data)
        await self._files._call_s3("put_object", Body=body, **self._place)  # noqa: SLF001
        self._forget()

    async def put_part(self, number: int, data: bytes) -> None:
        """Send a part."""
        identity = await self._ensure_begun()
        # S3 counts parts from 1.
        sent = await self._files._call_s3(  # noqa: SLF001
            "upload_part", **self._place, UploadId=identity, PartNumber=number + 1, Body=_Body(data)
        )
        self._etags[number] = sent["ETag"]

    async def complete(self, rest: bytes) -> None:  # noqa: ARG002 - there is none
        """Make the object visible."""
        # S3 refuses parts that are not in ascending order, and parts end in any order.
        parts = [{"PartNumber": n + 1, "ETag": self._etags[n]} for n in sorted(self._etags)]
        await self._files._call_s3(  # noqa: SLF001
            "complete_multipart_upload",
            **self._place,
            UploadId=await self._ensure_begun(),
            MultipartUpload={"Parts": parts},
        )
        self._beginning = None
        self._forget()

    async def look_up(self) -> tuple[int, datetime]:
        """Return the size of the object that is there now, and when it was written."""
        self._forget()
        found = await self._files._call_s3("head_object", **self._place)  # noqa: SLF001
        return found["ContentLength"], found["LastModified"]

    async def abort(self) -> None:
        """Give up the upload, so that the store removes its parts."""
        beginning, self._beginning = self._beginning, None
        if beginning is not None:
            identity = await beginning
            await self._files._call_s3(  # noqa: SLF001
                "abort_multipart_upload", **self._place, UploadId=identity
            )

    async def _ensure_begun(self) -> str:
        """Begin the upload with the first part, and return its id."""
        if self._beginning is None:
            self._beginning = asyncio.ensure_future(self._begin())
        # A part that is cancelled must not cancel the beginning, for which other parts wait.
        return await asyncio.shield(self._beginning)

    async def _begin(self) -> str:
        begun = await self._files._call_s3("create_multipart_upload", **self._place)  # noqa: SLF001
        headers = begun.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        # botocore gives the names of headers in lower case.
        self.begun = date_of({name.title(): value for name, value in headers.items()})
        identity: str = begun["UploadId"]
        return identity

    def _forget(self) -> None:
        """Have listings ask the store again."""
        self._files.invalidate_cache(self._path)


class _Body(Payload):
    """The bytes of a request, as a file that gives parts of them without a copy.

    botocore reads it for the checksum and the signature, and from the beginning again for a retry.
    aiohttp would copy bytes, or a ``BytesIO``, twice; and it would not hand on the redirect of a
    bucket in another region, if it could not write the body again.
    """

    _autoclose = True  # there is nothing to close

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._view = memoryview(data)
        self._place = 0

    def __len__(self) -> int:
        return len(self._view)

    def read(self, size: int | None = -1) -> memoryview:
        """Return the next bytes."""
        end = len(self._view) if size is None or size < 0 else self._place + size
        found = self._view[self._place : end]
        self._place += len(found)
        return found

    def tell(self) -> int:
        """Return the place that is read next."""
        return self._place

    def seek(self, place: int, whence: int = 0) -> int:
        """Read from another place next."""
        self._place = place + (0, self._place, len(self._view))[whence]
        return self._place

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write all bytes; aiohttp calls it once for each request."""
        for start in range(0, len(self), CHUNK):
            await writer.write(self._view[start : start + CHUNK])

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the bytes as text."""
        return bytes(self._view).decode(encoding, errors)


def writing_filesystem(url: str, options: Mapping[str, Any]) -> Any:
    """Return s3fs's filesystem for writing, which fsspec keeps.

    Raises:
        ConfigError: The URL names no bucket, or an option would break writing.
    """
    split_bucket(url)
    check_proxies()
    # Without the path: fsspec takes a ``::`` in it for a chain.
    filesystem, _ = shared_filesystem("s3://", writing_options(options))
    # Only then are the files read; and to look for them takes botocore 6 ms.
    if filesystem.session is None:
        check_login_files(options.get("profile"))
        filesystem.session = new_session(filesystem.kwargs)
    return filesystem


def copy_object(filesystem: Any, source: str, target: str, size: int) -> None:
    """Copy an object of a known size to another key.

    Raises:
        OSError: It cannot be copied.
    """
    if size > ONE_COPY:
        filesystem.cp_file(source, target)
        return
    bucket, key, _ = filesystem.split_path(source)
    to_bucket, to_key, _ = filesystem.split_path(target)
    copied = {"Bucket": bucket, "Key": key}
    filesystem.call_s3("copy_object", Bucket=to_bucket, Key=to_key, CopySource=copied)
    filesystem.invalidate_cache(target)


def abort_uploads(filesystem: Any, directory: str, prefixes: Sequence[str]) -> None:
    """Abort the multipart uploads of objects whose names begin with a prefix.

    Raises:
        OSError: The store does not list uploads, or not to this user.
        StoreMisbehaved: The list has no end.
    """
    bucket, key, _ = filesystem.split_path(directory.rstrip("/") + "/")
    marks: dict[str, str] = {}
    pages = Pages(f"s3://{directory}")
    while True:
        page = filesystem.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key, **marks)
        for upload in page.get("Uploads", []):
            if upload["Key"].removeprefix(key).startswith(tuple(prefixes)):
                filesystem.call_s3(
                    "abort_multipart_upload",
                    Bucket=bucket,
                    Key=upload["Key"],
                    UploadId=upload["UploadId"],
                )
        if not page.get("IsTruncated"):
            return
        marks = {name: page.get(f"Next{name}", "") for name in ("KeyMarker", "UploadIdMarker")}
        pages.check(Page((), "\n".join(marks.values())))
