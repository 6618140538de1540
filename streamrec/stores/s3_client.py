"""botocore's client, as s3fs makes it: for what :mod:`streamrec.stores.s3_calls` does not know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from s3fs import S3FileSystem

    from streamrec.stores.s3_calls import Call

__all__ = ["SigningClient"]

AWS_HOST = ".amazonaws.com"
METHODS = {"GetObject": "get_object", "ListObjectsV2": "list_objects_v2"}


class SigningClient:
    """Signs; it sends nothing.

    Args:
        filesystem: s3fs's, which holds the client.
    """

    def __init__(self, filesystem: S3FileSystem) -> None:
        self._filesystem = filesystem
        self._client: Any = None
        self._headers: dict[str, dict[str, str]] = {}
        """By operation, those that were signed last; they follow from the options."""
        self._retired: list[Any] = []
        """Clients with credentials of the past."""

    async def sign(self, call: Call, seconds: float) -> tuple[str, Mapping[str, str]]:
        """A call's signed address, and the headers to be sent with it."""
        client = await self._ready()
        method = METHODS[call.operation]
        address: str = await client.generate_presigned_url(
            method,
            # Anew each time: botocore changes them.
            Params=self._filesystem._get_s3_method_kwargs(  # noqa: SLF001 - as its own calls do
                getattr(client, method), **call.parameters
            ),
            ExpiresIn=int(seconds),
        )
        return address, self._headers.get(call.operation, {})

    async def renew(self) -> None:
        """Make a client of a new session, which finds credentials anew."""
        if self._client is not None:
            self._retired.append(self._client)
            await self._filesystem.set_session(refresh=True)

    async def aclose(self) -> None:
        """Close the clients' connections."""
        # Asking for the client would make one.
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
        """Keep S3's own headers while botocore signs them: the URL does not hold their values."""
        names = [name for name in request.headers if name.lower().startswith("x-amz-")]
        self._headers[operation_name] = {name: request.headers[name] for name in names}


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
