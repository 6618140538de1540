"""The handling of s3fs's options: used, ignored, refused, or a reason to read through s3fs. Pure.

Most options go to s3fs and botocore, which sign with them: endpoints, credentials, regions,
addressing, requester pays, encryption with a customer's key. Those about blocks, caches and uploads
(``default_block_size``, ``default_cache_type``, ``fixed_upload_size``, ``max_concurrency``,
``cache_regions``, …) have no effect on reading ranges.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from streamrec.errors import ConfigError
from streamrec.stores.http.transport import AUTHORITIES, OPTIONS, Transport, transport_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_OURS = frozenset({"asynchronous", "loop", "skip_instance_cache"})
_OUR_PARAMETERS = frozenset(
    {"IfMatch", "IfModifiedSince", "IfNoneMatch", "IfUnmodifiedSince", "PartNumber", "Range"}
)
"""GetObject's parameters that streamrec sets itself: the range and the version to read."""
_TEXTS = ("key", "secret", "token", "profile", "endpoint_url")
_SECONDS = ("connect_timeout", "read_timeout")
REGION = "AWS_DEFAULT_REGION"
"""The variable from which botocore takes the region."""
_DIRECTORY_BUCKET = "--x-s3"
"""The suffix of names of S3 Express One Zone's buckets."""
_MULTI_REGION = re.compile(r"arn:[^:]*:s3::")
"""Multi-region access points, which need another kind of signature (SigV4A)."""


def check_options(options: Mapping[str, Any]) -> None:
    """Check that no option is set that would break reading or writing.

    Raises:
        ConfigError: Such an option is set, or has a value of another kind.
    """
    for name in sorted(_OURS.intersection(options)):
        raise ConfigError(f"storage_options: {name!r} is set by streamrec itself; leave it out")
    for name in sorted(_OUR_PARAMETERS.intersection(mapping_of(options, "s3_additional_kwargs"))):
        raise ConfigError(
            f"storage_options: {name!r} in 's3_additional_kwargs' would change what is read; leave "
            "it out"
        )
    _check_values(options, _TEXTS, _is_text, "text")
    client, config = (mapping_of(options, name) for name in ("client_kwargs", "config_kwargs"))
    _check_values(client, ("region_name",), _is_text, "text")
    _check_values(config, ("max_pool_connections",), _is_count, "a number from 1 up")
    _check_values(config, _SECONDS, _is_positive, "a number of seconds above 0")


def _check_values(
    options: Mapping[str, Any], names: Iterable[str], fits: Callable[[Any], bool], kind: str
) -> None:
    for name in names:
        value = options.get(name)
        if value is not None and not fits(value):
            # A secret is not repeated.
            given = repr(value) if isinstance(value, int | float) and name not in _TEXTS else ""
            raise ConfigError(
                f"storage_options: {name!r} must be {kind}, not {given or type(value).__name__}"
            )


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 1


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and value > 0


def reason_to_fall_back(options: Mapping[str, Any], bucket: str) -> str | None:
    """Return the reason why a bucket cannot be read by presigned URLs, or ``None``."""
    if options.get("version_aware"):
        return "version_aware lets names end in ?versionId="
    if bucket.endswith(_DIRECTORY_BUCKET):
        return "requests to a directory bucket need sessions of its own"
    if _MULTI_REGION.match(bucket):
        return "requests to a multi-region access point are signed in another way"
    return None


def sdk_options(options: Mapping[str, Any], *, region: str | None = None) -> dict[str, Any]:
    """Return the options of s3fs for signing, without retries.

    Args:
        options: The user's options, which take precedence.
        region: The bucket's region; ``None``: that of the options and the environment.

    Raises:
        ConfigError: The region is empty.
    """
    config = {
        "signature_version": "s3v4",  # the default for URLs is SigV2, which S3 now refuses
        # The pipeline retries; a second loop inside of its own would multiply the attempts.
        "retries": {"mode": "standard", "total_max_attempts": 1},
        **mapping_of(options, "config_kwargs"),
    }
    client = mapping_of(options, "client_kwargs")
    if region is not None:
        client["region_name"] = region
    return _complete(options, config, client)


def writing_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of s3fs for writing, which retries by itself.

    Raises:
        ConfigError: An option would break writing, or the region is empty.
    """
    check_options(options)
    config, client = (mapping_of(options, name) for name in ("config_kwargs", "client_kwargs"))
    return _complete(options, config, client)


def _complete(
    options: Mapping[str, Any], config: dict[str, Any], client: dict[str, Any]
) -> dict[str, Any]:
    """Add the transport to the configuration and the client's options of s3fs's options."""
    _check_region(client)
    transport = s3_transport(options)
    if transport.authority is not None or not transport.check:
        client["verify"] = transport.authority or False
    if transport.proxy is not None:
        config["proxies"] = dict.fromkeys(("http", "https"), transport.proxy)
    own = {name: value for name, value in options.items() if name not in OPTIONS}
    return {**own, "config_kwargs": config, "client_kwargs": client}


def _check_region(client: Mapping[str, Any]) -> None:
    """Refuse an empty region, with which botocore signs what no store accepts."""
    named = "storage_options' 'region_name' in 'client_kwargs'"
    region = client.get("region_name")
    if region is None:
        named, region = REGION, os.environ.get(REGION)
    if region is not None and not region.strip():
        raise ConfigError(f"{named} is empty; set it to the bucket's region, or leave it out")


def s3_transport(options: Mapping[str, Any]) -> Transport:
    """Return the transport to the endpoint, from streamrec's and botocore's options.

    Raises:
        ConfigError: A file does not exist, or the proxy is not an http URL.
    """
    config = mapping_of(options, "config_kwargs")
    proxies = mapping_of(config, "proxies")
    botocore = {
        "verify": mapping_of(options, "client_kwargs").get("verify"),
        "proxy": proxies.get("https", proxies.get("http")),
    }
    named = {name: value for name, value in botocore.items() if value is not None}
    own = {name: value for name, value in options.items() if name in OPTIONS}
    certificate = config.get("client_cert")
    return transport_of({**named, **own}, ("AWS_CA_BUNDLE", *AUTHORITIES), certificate=certificate)


def mapping_of(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a copy of an option that is a mapping itself, such as ``client_kwargs``.

    Raises:
        ConfigError: The option is not a mapping.
    """
    value = options.get(name) or {}
    try:
        return dict(value)
    except (TypeError, ValueError):
        raise ConfigError(f"storage_options: {name!r} must be a mapping") from None
