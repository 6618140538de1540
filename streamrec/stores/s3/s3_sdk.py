"""Signing by S3's SDK, for options that are not plain, and uploads."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aiobotocore.session import AioSession
from aiohttp.payload import Payload
from botocore.exceptions import BotoCoreError
from botocore.loaders import create_loader
from botocore.session import Session
from s3fs import S3FileSystem

from streamrec.config.named_files import check_file
from streamrec.stores.base.new_object import UploadSession, date_of
from streamrec.stores.base.pages import Page, Pages
from streamrec.stores.base.protocol import in_thread, split_bucket
from streamrec.stores.fsspec.filesystem_writer import shared_filesystem
from streamrec.stores.http.transport import check_proxies
from streamrec.stores.s3.s3_options import sdk_options, writing_options

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


AWS_HOST = ".amazonaws.com"


def check_login_files(profile: str | None) -> None:
    """Check the files of AWS's configuration, and those that its profile names.

    Args:
        profile: The profile; ``None``: that of the environment.

    Raises:
        ConfigError: One is a FIFO or a device.
    """
    session = Session(profile=profile)
    for name in ("credentials_file", "config_file"):
        check_file(session.get_config_variable(name), f"AWS's {name}")
    with suppress(BotoCoreError):  # s3fs meets and tells it, too
        for name in ("ca_bundle", "web_identity_token_file"):
            if path := session.get_scoped_config().get(name):
                check_file(path, f"{name!r} in AWS's configuration")


class SdkSigner:
    """A signer for all options, for use in one event loop.

    Args:
        storage_options: s3fs's options.
        region: The bucket's region; ``None``: that of the options and the environment.
    """

    def __init__(self, storage_options: Mapping[str, Any], region: str | None) -> None:
        self._filesystem = S3FileSystem(
            **sdk_options(storage_options, region=region),
            asynchronous=True,
            skip_instance_cache=True,  # the instance belongs to its loop, and aclose closes it
        )
        # A session of the user's own is kept: only those made here can be made anew.
        self._given_session = self._filesystem.session is not None
        self._client: Any = None
        self._retired: list[Any] = []
        """Clients with old credentials."""
        self._headers: dict[str, dict[str, str]] = {}
        """The headers signed last, by operation; they follow from the options."""

    async def sign(
        self, method: str, parameters: Mapping[str, str], lifetime: int
    ) -> tuple[str, Mapping[str, str]]:
        """Return the signed URL of a request, and the headers to send.

        Args:
            method: The client's method.
            parameters: Its arguments.
            lifetime: The seconds for which the signature is valid.
        """
        client = self._client
        address: str = await client.generate_presigned_url(
            method,
            # Made for each call, because botocore changes them.
            Params=self._filesystem._get_s3_method_kwargs(  # noqa: SLF001 - as its own calls do
                getattr(client, method), **parameters
            ),
            ExpiresIn=lifetime,
        )
        # Signing has just filled them: botocore calls _keep_headers for each signature.
        return address, self._headers.get(client.meta.method_to_api_mapping[method], {})

    async def prepare(self) -> None:
        """Make botocore's client where there is none; to be called by one caller at a time."""
        if self._filesystem.session is None:
            self._filesystem.session = await in_thread(new_session, self._filesystem.kwargs)
        client = await self._filesystem.set_session()
        if client is not self._client:
            self._client = client
            _use_own_region(client)
            client.meta.events.register_last("before-sign.s3", self._keep_headers)

    async def renew(self) -> None:
        """Look up credentials again.

        The session is replaced too, because it remembers the files and variables that it has read.
        """
        if not self._given_session:
            self._filesystem.session = await in_thread(new_session, self._filesystem.kwargs)
        # Requests of the old client may still be under way, so that it is closed at the end.
        self._retired.append(self._client)
        await self._filesystem.set_session(refresh=True)

    async def aclose(self) -> None:
        """Close the connections of botocore's clients."""
        # Not by s3fs's own attribute, which would make a client.
        clients = [*self._retired, getattr(self._filesystem, "_s3", None)]
        self._retired.clear()
        for client in clients:
            if client is not None:
                await client.close()

    def _keep_headers(self, request: Any, operation_name: str, **_: object) -> None:
        """Keep the ``x-amz-`` headers that botocore signs, since the URL does not hold them."""
        names = [name for name in request.headers if name.lower().startswith("x-amz-")]
        self._headers[operation_name] = {name: request.headers[name] for name in names}


def new_session(arguments: Mapping[str, Any]) -> AioSession:
    """Return a session that shares botocore's descriptions of services with others.

    Each session would read and parse them anew, which takes a new client 50 ms.
    """
    check_login_files(arguments.get("profile"))
    session = AioSession(**arguments)
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    return session


class _Everything(tuple[str, ...]):
    """The names of all services, without a look at them."""

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        return True


@cache
def _loader(data_path: str | None) -> Any:
    loader = create_loader(data_path)
    # It would look through the files of all 400 services before it loads the one that is asked for,
    # 3,000 calls of stat. Of one that does not exist it finds no version, and says so.
    loader.list_available_services = lambda type_name: _Everything()  # noqa: ARG005 - its argument
    return loader


def _use_own_region(client: Any) -> None:
    """Have botocore presign for the region's own host.

    By default it signs for ``bucket.s3.amazonaws.com``, which redirects requests for new buckets,
    or those of other regions, to another host. With a virtual addressing style it does not. The
    client's endpoints are fixed by now, so that nothing else changes.
    """
    config = client.meta.config
    style = (config.s3 or {}).get("addressing_style", "auto")
    if style == "auto" and (urlsplit(client.meta.endpoint_url).hostname or "").endswith(AWS_HOST):
        config.s3 = {**(config.s3 or {}), "addressing_style": "virtual"}
