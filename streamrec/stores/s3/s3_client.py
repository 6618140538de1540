"""Signing by botocore's client, as s3fs makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from s3fs import S3FileSystem

__all__ = ["Call", "SigningClient", "get_object", "list_objects"]

AWS_HOST = ".amazonaws.com"


class Call(NamedTuple):
    """A request to sign."""

    method: str
    """The client's method."""
    parameters: Mapping[str, str]

    @property
    def place(self) -> tuple[str, str]:
        """The bucket and key; the key of a listing is empty."""
        return self.parameters["Bucket"], self.parameters.get("Key", "")


def get_object(bucket: str, key: str) -> Call:
    """Return the GET of an object, or of a range of it: Range is not signed."""
    return Call("get_object", {"Bucket": bucket, "Key": key})


def list_objects(
    bucket: str, prefix: str, delimiter: str = "", token: str = "", after: str = ""
) -> Call:
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
    return Call("list_objects_v2", {"Bucket": bucket, "EncodingType": "url", **given})


class SigningClient:
    """A signer of requests over botocore's client, which sends nothing.

    Args:
        filesystem: s3fs's filesystem, which holds the client.
    """

    def __init__(self, filesystem: S3FileSystem) -> None:
        self._filesystem = filesystem
        self._client: Any = None
        self._headers: dict[str, dict[str, str]] = {}
        """The headers signed last, by operation; they follow from the options."""
        self._retired: list[Any] = []
        """Clients with old credentials."""

    async def sign(self, call: Call, seconds: float) -> tuple[str, Mapping[str, str]]:
        """Return a call's signed address, and the headers to be sent with it."""
        client = await self._ready()
        address: str = await client.generate_presigned_url(
            call.method,
            # Made for each call, because botocore changes them.
            Params=self._filesystem._get_s3_method_kwargs(  # noqa: SLF001 - as its own calls do
                getattr(client, call.method), **call.parameters
            ),
            ExpiresIn=int(seconds),
        )
        operation = client.meta.method_to_api_mapping[call.method]
        return address, self._headers.get(operation, {})

    async def renew(self) -> None:
        """Make a client of a new session, which looks up credentials again."""
        if self._client is not None:
            self._retired.append(self._client)
            await self._filesystem.set_session(refresh=True)

    async def aclose(self) -> None:
        """Close the clients' connections."""
        # Not by s3fs's own attribute, which would make a client.
        clients = [*self._retired, getattr(self._filesystem, "_s3", None)]
        self._retired.clear()
        for client in clients:
            if client is not None:
                await client.close()

    async def _ready(self) -> Any:
        client = await self._filesystem.set_session()
        if client is not self._client:
            self._client = client
            _use_own_region(client)
            client.meta.events.register_last("before-sign.s3", self._look_on)
        return client

    def _look_on(self, request: Any, operation_name: str, **_: object) -> None:
        """Keep the ``x-amz-`` headers that botocore signs, since the URL does not hold them."""
        names = [name for name in request.headers if name.lower().startswith("x-amz-")]
        self._headers[operation_name] = {name: request.headers[name] for name in names}


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
