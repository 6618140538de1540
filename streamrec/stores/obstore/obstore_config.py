"""Clients of obstore, made from options, credentials and certificates."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from obstore.store import from_url

from streamrec.errors import ConfigError
from streamrec.masking import masked
from streamrec.stores.base import in_thread
from streamrec.stores.http.http_store import READ_SECONDS
from streamrec.stores.http.transport import OPTIONS, Transport, transport_of
from streamrec.stores.s3.s3_options import check_options, mapping_of, s3_transport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from obstore.store import ObjectStore

    from streamrec.stores.s3.presign import Presigner

__all__ = ["Connection", "s3_config", "split_place"]

CONNECT_SECONDS = 10
_PLACE = re.compile(r"(?is)([a-z0-9]+)://([^/?#]+)/?(.*)")
_SAME = {"s3a": "s3", "gcs": "gs"}
_S3_KNOWN = frozenset({
    "anon", "client_kwargs", "config_kwargs", "endpoint_url", "key", "profile", "requester_pays",
    "s3_additional_kwargs", "secret", "session", "token", "use_ssl",
})  # fmt: skip
_S3_ENCRYPTION = frozenset({"SSECustomerAlgorithm", "SSECustomerKey"})


def split_place(url: str) -> tuple[str, str]:
    """Split a URL into its bucket or host, such as ``s3://bucket``, and the object's name.

    Raises:
        ConfigError: There is no bucket or host, or the URL has a query, which obstore drops.
    """
    found = _PLACE.fullmatch(url)
    if not found:
        raise ConfigError(f"{masked(url)}: this names no bucket or host; write the URL in full")
    scheme = _SAME.get(found[1].lower(), found[1].lower())
    if scheme in ("http", "https") and ("?" in found[3] or "@" in found[2]):
        raise ConfigError(
            f"{masked(url)}: obstore cannot read a URL with a query or a user; leave 'reader' out"
        )
    return f"{scheme}://{found[2]}", found[3]


def s3_config(options: Mapping[str, Any]) -> dict[str, Any]:
    """Translate s3fs's options to obstore's names, without credentials.

    Raises:
        ConfigError: obstore does not support an option.
    """
    check_options(options)
    client = mapping_of(options, "client_kwargs")
    extra = mapping_of(options, "s3_additional_kwargs")
    unknown = sorted({*options} - _S3_KNOWN - OPTIONS) + sorted({*extra} - _S3_ENCRYPTION)
    if unknown:
        raise ConfigError(
            f"storage_options: obstore does not support {', '.join(map(repr, unknown))}; leave it "
            "or 'reader' out"
        )
    style = mapping_of(mapping_of(options, "config_kwargs"), "s3").get("addressing_style")
    config = {
        "endpoint": options.get("endpoint_url") or client.get("endpoint_url"),
        "region": client.get("region_name"),
        "request_payer": options.get("requester_pays"),
        "skip_signature": options.get("anon"),
        "virtual_hosted_style_request": style == "virtual",
    }
    if "SSECustomerKey" in extra:
        key = extra["SSECustomerKey"]
        raw = key.encode() if isinstance(key, str) else key
        config["server_side_encryption"] = "sse-c"
        config["sse_customer_key_base64"] = base64.b64encode(raw).decode()
    return {name: value for name, value in config.items() if value}


class Connection:
    """A factory of obstore's clients.

    Args:
        options: The store's options, as its scheme names them.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._signer: Presigner | None = None

    async def open(self, place: str) -> ObjectStore:
        """Make a client for a bucket or host, without retries.

        Raises:
            ConfigError: An option is wrong.
        """
        scheme = place.partition("://")[0]
        # The function's overloads depend on the scheme, which is not known to the type checker.
        make = cast("Callable[..., ObjectStore]", from_url)
        common: dict[str, Any] = {"retry_config": {"max_retries": 0}}
        if scheme == "s3":
            client = await self._client_config(s3_transport(self._options))
            config = s3_config(self._options)
            if not config.get("skip_signature"):
                common["credential_provider"] = self._credentials
            return make(place, config=config, client_options=client, **common)
        own = {name: value for name, value in self._options.items() if name not in OPTIONS}
        client = await self._client_config(transport_of(self._options))
        if scheme in ("http", "https"):
            client["default_headers"] = mapping_of(own, "headers")
            return make(place, client_options=client, **common)
        return make(place, config=own, client_options=client, **common)

    async def aclose(self) -> None:
        """Close the signer that found the credentials."""
        signer, self._signer = self._signer, None
        if signer is not None:
            await signer.aclose()

    async def _client_config(self, transport: Transport) -> dict[str, Any]:
        client: dict[str, Any] = {
            "allow_http": True,
            "connect_timeout": f"{CONNECT_SECONDS}s",
            "read_timeout": f"{int(READ_SECONDS * 1000)}ms",
            "timeout": "1h",  # for a whole body; read_timeout ends a silent one
            "user_agent": "streamrec",
        }
        if not transport.check:
            client["allow_invalid_certificates"] = True
        if transport.proxy is not None:
            client["proxy_url"] = transport.proxy
        if transport.authority is not None:
            client["root_certificate"] = await in_thread(Path(transport.authority).read_bytes)
        return client

    async def _credentials(self) -> dict[str, Any]:
        """Return the credentials with which the store over aiohttp signs."""
        if self._signer is None:
            from streamrec.stores.s3.presign import Presigner

            self._signer = Presigner(self._options)
        return await self._signer.credentials()
