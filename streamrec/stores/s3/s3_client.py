"""Signing by botocore's client, for cases that ``s3_calls`` does not handle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from s3fs import S3FileSystem

    from streamrec.stores.s3.s3_calls import Call

__all__ = ["SigningClient"]

AWS_HOST = ".amazonaws.com"
METHODS = {"GetObject": "get_object", "ListObjectsV2": "list_objects_v2"}


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
        method = METHODS[call.operation]
        address: str = await client.generate_presigned_url(
            method,
            # Made for each call, because botocore changes them.
            Params=self._filesystem._get_s3_method_kwargs(  # noqa: SLF001 - as its own calls do
                getattr(client, method), **call.parameters
            ),
            ExpiresIn=int(seconds),
        )
        return address, self._headers.get(call.operation, {})

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
            for operation in METHODS:
                client.meta.events.register_last(f"before-sign.s3.{operation}", self._look_on)
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
