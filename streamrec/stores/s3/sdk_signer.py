"""Signing of S3 requests by botocore's client, with s3fs's options and session."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError
from botocore.loaders import create_loader
from botocore.session import Session
from s3fs import S3FileSystem

from streamrec.config.named_files import check_file
from streamrec.stores.base.protocol import in_thread
from streamrec.stores.s3.s3_options import sdk_options

if TYPE_CHECKING:
    from collections.abc import Mapping

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
