"""Signing of S3 requests with s3fs's options and session; signed URLs are kept for reuse."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError
from botocore.loaders import create_loader
from botocore.session import Session
from s3fs import S3FileSystem

from streamrec.config.named_files import check_file
from streamrec.stores.base.foreign_errors import translate_errors
from streamrec.stores.base.protocol import in_thread
from streamrec.stores.s3.s3_options import sdk_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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


AWS_HOST = ".amazonaws.com"
LIFETIME = 3600
"""Seconds for which a signature is valid, unless the credentials expire before. It is made anew at
half of that, or when the store refuses it."""
MAX_KEPT = 8192
"""Most signed URLs to keep, of 0.5 KB each; signing one takes 0.2 ms."""


class UnsignedRequest(NamedTuple):
    """A request to sign."""

    method: str
    """The client's method."""
    parameters: Mapping[str, str]

    @property
    def place(self) -> tuple[str, str]:
        """The bucket and key; the key of a listing is empty."""
        return self.parameters["Bucket"], self.parameters.get("Key", "")


def get_object(bucket: str, key: str) -> UnsignedRequest:
    """Return the GET of an object, or of a range of it: Range is not signed."""
    return UnsignedRequest("get_object", {"Bucket": bucket, "Key": key})


def list_objects(
    bucket: str, prefix: str, delimiter: str = "", token: str = "", after: str = ""
) -> UnsignedRequest:
    """Return the GET of a page of a listing.

    Args:
        bucket: The bucket.
        prefix: The beginning of the keys.
        delimiter: Leaves out keys that have it behind the prefix.
        token: The token of the page; empty for the first one.
        after: The key after which the first page begins.
    """
    named = {
        "Prefix": prefix,
        "Delimiter": delimiter,
        "ContinuationToken": token,
        "StartAfter": after,
    }
    given = {name: value for name, value in named.items() if value}
    return UnsignedRequest("list_objects_v2", {"Bucket": bucket, "EncodingType": "url", **given})


class SignedUrl(NamedTuple):
    """A signed URL, with the headers to send."""

    address: str
    renew_at: float
    """The time to sign again; seconds since 1970."""
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
        with translate_errors("s3://"):
            self._filesystem = S3FileSystem(
                **sdk_options(storage_options, region=region),
                asynchronous=True,
                skip_instance_cache=True,  # the instance belongs to its loop, and aclose closes it
            )
        self._clock = clock
        self._kept: dict[tuple[str, str], SignedUrl] = {}
        # A session of the user's own is kept: only those made here can be made anew.
        self._given_session = self._filesystem.session is not None
        self._client: Any = None
        self._retired: list[Any] = []
        """Clients with old credentials."""
        self._headers: dict[str, dict[str, str]] = {}
        """The headers signed last, by operation; they follow from the options."""
        self._era = 0
        self._lock = asyncio.Lock()  # clients are made, and credentials looked up, one at a time

    async def sign(self, url: str, call: UnsignedRequest) -> tuple[SignedUrl, bool]:
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
        with translate_errors(url):
            signed = await self._sign(call)
        if call.method == "get_object":
            self._keep(call, signed)
        return signed, True

    def forget(self, call: UnsignedRequest) -> None:
        """Forget the request's signed URL."""
        self._kept.pop(call.place, None)

    async def renew(self, url: str, refused: SignedUrl) -> None:
        """Look up credentials again, unless that was done since the refused URL was signed.

        The session is replaced too, because it remembers the files and variables that it has read.

        Args:
            url: The object or prefix, for errors.
            refused: The signed URL that the store has refused.
        """
        async with self._lock:
            if refused.era != self._era:
                return
            with translate_errors(url):
                if not self._given_session:
                    self._filesystem.session = await in_thread(new_session, self._filesystem.kwargs)
                # Requests of the old client may still be under way, so that it is closed at the
                # end.
                self._retired.append(self._client)
                await self._filesystem.set_session(refresh=True)
            self._era += 1
            # All of them were signed with the old credentials.
            self._kept.clear()

    async def aclose(self) -> None:
        """Close the connections of botocore's clients."""
        # Not by s3fs's own attribute, which would make a client.
        clients = [*self._retired, getattr(self._filesystem, "_s3", None)]
        self._retired.clear()
        for client in clients:
            if client is not None:
                await client.close()

    def _keep(self, call: UnsignedRequest, signed: SignedUrl) -> None:
        # A dictionary keeps the place of a key that is set again, and the first one goes when it is
        # full.
        self.forget(call)
        if len(self._kept) >= MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[call.place] = signed

    async def _sign(self, call: UnsignedRequest) -> SignedUrl:
        # The era of before: where credentials are renewed meanwhile, this URL counts as an old one.
        client, era = await self._ready(), self._era
        address: str = await client.generate_presigned_url(
            call.method,
            # Made for each call, because botocore changes them.
            Params=self._filesystem._get_s3_method_kwargs(  # noqa: SLF001 - as its own calls do
                getattr(client, call.method), **call.parameters
            ),
            ExpiresIn=LIFETIME,
        )
        # Signing has just filled them: botocore calls _keep_headers for each signature.
        headers = self._headers.get(client.meta.method_to_api_mapping[call.method], {})
        return SignedUrl(address, self._clock() + LIFETIME / 2, headers, era)

    async def _ready(self) -> Any:
        """Return botocore's client, and make it first where there is none."""
        async with self._lock:
            if self._filesystem.session is None:
                self._filesystem.session = await in_thread(new_session, self._filesystem.kwargs)
            client = await self._filesystem.set_session()
            if client is not self._client:
                self._client = client
                _use_own_region(client)
                client.meta.events.register_last("before-sign.s3", self._keep_headers)
            return client

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
