"""The two requests to S3, and their signatures, with and without botocore's client.

The client knows every rule of S3. It learns them from a model of the whole service, which takes
0.14 s to read, and half a millisecond to sign a URL by. Most buckets need two of the rules: those
of :class:`Endpoint`. Tests hold its signatures against the client's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, urlencode, urlsplit

from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest

from streamrec.masking import masked_repr

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from botocore.credentials import ReadOnlyCredentials

__all__ = ["Call", "Endpoint", "GetObject", "ListObjects", "plain_endpoint", "sign"]

AWS_REGION = "us-east-1"
"""The region to sign for if none is named."""
_REGION = re.compile(r"(?!us-gov-|us-iso|cn-)[a-z]{2}-[a-z]+-\d{1,2}")
"""Region names of the AWS partition; hosts of other partitions have other suffixes."""
_BUCKET = re.compile(r"(?!xn--|sthree-)[a-z0-9][a-z0-9-]{1,61}[a-z0-9](?<!--ol-s3)(?<!-s3alias)")
"""A name that is a label of a host, and no access point's alias."""
_ENDPOINT = re.compile(r"https?://[a-zA-Z0-9.-]+(?::\d+)?/?")
_TUNING = frozenset(
    {
        *("client_cert", "connect_timeout", "max_pool_connections", "proxies", "read_timeout"),
        *("retries", "s3", "signature_version", "tcp_keepalive", "user_agent_extra"),
    }
)
"""Keys of ``config_kwargs`` that change no URL, or that :func:`plain_endpoint` reads itself."""
_UNSET = ("auth_scheme_preference", "data_path", "s3", "sigv4a_signing_region_set")
_UNSET_FOR_AWS = ("use_dualstack_endpoint", "use_fips_endpoint")

ENDPOINT_NAMES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "endpoint_url", "services")
"""Variables, and names in a profile, that may lead to another endpoint than AWS's."""


@dataclass(frozen=True, slots=True)
class GetObject:
    """A GET of an object, or of a range of it: Range is not signed."""

    operation: ClassVar = "GetObject"
    bucket: str
    key: str

    @property
    def query(self) -> dict[str, str]:
        """The query, which is empty: the path names the object."""
        return {}

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters, as botocore's client names them."""
        return {"Bucket": self.bucket, "Key": self.key}


@dataclass(frozen=True, slots=True)
class ListObjects:
    """A request for a page of a listing: ``ListObjectsV2``."""

    operation: ClassVar = "ListObjectsV2"
    key: ClassVar = ""
    bucket: str
    prefix: str
    delimiter: str
    token: str = ""
    """The token from the page before; empty for the first page."""
    after: str = ""
    """The key after which the first page begins."""

    @property
    def query(self) -> dict[str, str]:
        """The parameters that are not empty, as S3 names them."""
        named = {
            "list-type": "2",
            "encoding-type": "url",
            "prefix": self.prefix,
            "delimiter": self.delimiter,
            "continuation-token": self.token,
            "start-after": self.after,
        }
        return {name: value for name, value in named.items() if value}

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters that are not empty, as botocore's client names them."""
        named = {
            "Bucket": self.bucket,
            "EncodingType": "url",
            "Prefix": self.prefix,
            "Delimiter": self.delimiter,
            "ContinuationToken": self.token,
            "StartAfter": self.after,
        }
        return {name: value for name, value in named.items() if value}


Call = GetObject | ListObjects


@dataclass(frozen=True)
class Endpoint:
    """An endpoint of S3, for buckets with plain names.

    Args:
        region: The region that the options or the environment name.
        url: The URL of a store other than AWS, with buckets in its path.
    """

    region: str | None
    url: str | None = None

    __repr__ = masked_repr

    @property
    def signing_region(self) -> str:
        """The region to sign for."""
        return self.region or AWS_REGION

    def address(self, call: Call) -> str | None:
        """Return the address to sign; ``None`` if only botocore's client can tell."""
        if not _BUCKET.fullmatch(call.bucket):
            return None
        path = quote(call.key, safe="/~")
        if self.url is not None:
            return f"{self.url.rstrip('/')}/{call.bucket}" + (path and f"/{path}")
        region = "" if self.signing_region == AWS_REGION else f".{self.region}"
        return f"https://{call.bucket}.s3{region}.amazonaws.com/{path}"


def sign(
    call: Call,
    endpoint: Endpoint,
    credentials: ReadOnlyCredentials | None,
    seconds: float,
    *,
    pays: bool,
) -> tuple[str, Mapping[str, str]] | None:
    """Return a call's signed address, and the headers to be sent with it.

    Args:
        call: The request.
        endpoint: The endpoint.
        credentials: The credentials; ``None``: no signature.
        seconds: The signature's lifetime.
        pays: ``True`` if the requester pays.

    Returns:
        Address and headers; ``None`` if only botocore's client can sign the call.
    """
    address = endpoint.address(call)
    if address is None:
        return None
    if credentials is None:
        query = urlencode(call.query, quote_via=quote, safe="-_.~")
        return address + (query and f"?{query}"), {}
    headers = {"x-amz-request-payer": "requester"} if pays else {}
    request = AWSRequest("GET", address, headers=dict(headers), params=dict(call.query))
    signer = S3SigV4QueryAuth(credentials, "s3", endpoint.signing_region, expires=int(seconds))
    signer.add_auth(request)
    return request.url, headers


def plain_endpoint(
    filesystem: Any, variable: Callable[[str], Any], environment: Mapping[str, Any]
) -> Endpoint | None:
    """Return the endpoint, if its URL and region are all that is configured about it.

    Args:
        filesystem: s3fs's filesystem, with the options.
        variable: Returns a setting of the session by botocore's name.
        environment: Variables and settings of the profile that may name an endpoint.

    Returns:
        The endpoint; ``None`` if other rules may apply, which botocore's client knows.
    """
    client, config = filesystem.client_kwargs, filesystem.config_kwargs
    url = filesystem.endpoint_url or client.get("endpoint_url")
    region = client.get("region_name") or variable("region")
    unset = _UNSET if url else (*_UNSET, *_UNSET_FOR_AWS)
    style = (config.get("s3") or {}).get("addressing_style", "auto")
    if (
        filesystem.kwargs.keys() - {"profile"}
        or client.keys() - {"endpoint_url", "region_name", "verify"}
        or config.keys() - _TUNING
        or (config.get("s3") or {}).keys() - {"addressing_style"}
        or style not in (("auto", "path") if url else ("auto", "virtual"))
        or config["signature_version"] != "s3v4"
        or filesystem.s3_additional_kwargs
        or filesystem.cache_regions
        or not filesystem.use_ssl
        or (filesystem.anon and filesystem.requester_pays)
        or bool(filesystem.key) != bool(filesystem.secret)
        or (filesystem.token and not filesystem.key)
        or (filesystem.endpoint_url and client.get("endpoint_url"))
        or variable("defaults_mode") != "legacy"
        or any(variable(name) for name in unset)
    ):
        return None
    return _endpoint(url, region, environment)


def _endpoint(
    url: str | None, region: str | None, environment: Mapping[str, Any]
) -> Endpoint | None:
    if url is None:
        named = any(environment.get(name) for name in ENDPOINT_NAMES)
        known = region is None or _REGION.fullmatch(region)
        return Endpoint(region) if known and not named else None
    if not _ENDPOINT.fullmatch(url) or (urlsplit(url).hostname or "").endswith(".amazonaws.com"):
        return None
    return Endpoint(region, url)
