"""Signing of S3 requests; signed URLs are kept for reuse."""

from __future__ import annotations

import asyncio
import hmac
import os
import re
import time
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

from streamrec.stores.base.foreign_errors import translate_errors
from streamrec.stores.base.protocol import in_thread
from streamrec.stores.base.source_text import fsspec_is_configured
from streamrec.stores.http.transport import OPTIONS
from streamrec.stores.s3.s3_options import REGION, mapping_of
from streamrec.surroundings import home

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from streamrec.stores.s3.s3_sdk import SdkSigner

LIFETIME = 3600
"""Seconds for which a signature is valid, unless the credentials expire before. It is made anew at
half of that, or when the store refuses it."""
MAX_KEPT = 8192
"""Most signed URLs to keep, of 0.5 KB each; signing one takes 0.07 ms, and with botocore 0.2 ms."""


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
        delimiter: Leaves out keys that have it after the prefix.
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
        self._options, self._region = storage_options, region
        self._clock = clock
        self._kept: dict[tuple[str, str], SignedUrl] = {}
        self._plain: PlainSigner | None = None
        """The signer that needs no client, once it is clear that the options need none."""
        self._sdk: SdkSigner | None = None
        self._is_begun = False
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

        Args:
            url: The object or prefix, for errors.
            refused: The signed URL that the store has refused.
        """
        async with self._lock:
            if refused.era != self._era:
                return
            with translate_errors(url):
                self._plain = await in_thread(_plain_signer, self._options, self._region)
                if self._sdk is not None:
                    await self._sdk.renew()
            self._era += 1
            # All of them were signed with the old credentials.
            self._kept.clear()

    async def aclose(self) -> None:
        """Close all connections."""
        if self._sdk is not None:
            await self._sdk.aclose()

    def _keep(self, call: UnsignedRequest, signed: SignedUrl) -> None:
        # A dictionary keeps the place of a key that is set again, and the first one goes when it is
        # full.
        self.forget(call)
        if len(self._kept) >= MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[call.place] = signed

    async def _sign(self, call: UnsignedRequest) -> SignedUrl:
        bucket = call.place[0]
        if self._plain is None or not self._plain.fits(bucket):
            async with self._lock:
                await self._prepare(bucket)
        # The era of before: where credentials are renewed meanwhile, this URL counts as an old one.
        era = self._era
        headers: Mapping[str, str] = {}
        if self._plain is not None and self._plain.fits(bucket):
            address = self._plain.sign(call.method, call.parameters, LIFETIME)
        else:
            assert self._sdk is not None
            address, headers = await self._sdk.sign(call.method, call.parameters, LIFETIME)
        return SignedUrl(address, self._clock() + LIFETIME / 2, headers, era)

    async def _prepare(self, bucket: str) -> None:
        """Make the signer for a bucket where there is none."""
        if not self._is_begun:
            self._plain = await in_thread(_plain_signer, self._options, self._region)
            self._is_begun = True
        if self._plain is not None and self._plain.fits(bucket):
            return
        if self._sdk is None:
            self._sdk = (await in_thread(_sdk_signer))(self._options, self._region)
        await self._sdk.prepare()


# The one looks for files, the other imports much: so both run in a thread.


def _plain_signer(options: Mapping[str, Any], region: str | None) -> PlainSigner | None:
    """Return the signer that needs no client; ``None``: these options need botocore's."""
    terms = plain_terms(options, region, os.environ)
    return None if terms is None else PlainSigner(terms)


def _sdk_signer() -> type[SdkSigner]:
    from streamrec.stores.s3.s3_sdk import SdkSigner

    return SdkSigner


_KNOWN = frozenset({"anon", "client_kwargs", "endpoint_url", "key", "secret", "token"}) | OPTIONS
"""Options of which this module knows what s3fs makes of them."""
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_FILES = {"AWS_CONFIG_FILE": ".aws/config", "AWS_SHARED_CREDENTIALS_FILE": ".aws/credentials"}
"""Variables for botocore's files, and the files below the home where they are not set."""
_VARIABLES = frozenset(
    {
        *(*_KEYS, "AWS_REGION", REGION),
        *("AWS_CA_BUNDLE", "AWS_EC2_METADATA_DISABLED", "AWS_EXECUTION_ENV", "AWS_PAGER"),
        *("AWS_MAX_ATTEMPTS", "AWS_RETRY_MODE", *_ENDPOINTS, *_FILES),
    }
)
"""Variables that change nothing else. Any other of AWS's may change how requests are signed."""
_ALGORITHM = "AWS4-HMAC-SHA256"
_AWS = "amazonaws.com"
_REGION = re.compile(r"(?!us-east-1$)(?:af|ap|ca|eu|il|me|mx|sa|us)-[a-z]+-\d")
"""Regions whose hosts are ``s3.REGION.amazonaws.com``; us-east-1 has two, and botocore chooses."""
_OTHER_REGION = re.compile(r"(?!.*fips)(?=.*[a-z])[a-z0-9]+(?:-[a-z0-9]+)*")
"""Regions with which an endpoint's requests are signed; botocore refuses or renames others."""
_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_ENDPOINT = re.compile(
    rf"https?://(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-f:]+\])(?::[0-9]{{1,5}})?/?",
    re.ASCII | re.IGNORECASE,
)
"""Endpoints that are a host alone."""
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_IN_HOST = re.compile(r"(?!.*--)(?!.*-s3alias$)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
"""Buckets that can be a part of the host's name, and are not of another kind."""
_QUERY = {
    "EncodingType": "encoding-type",
    "Prefix": "prefix",
    "Delimiter": "delimiter",
    "ContinuationToken": "continuation-token",
    "StartAfter": "start-after",
}
"""The parameters of ListObjectsV2, as botocore and as a URL names them."""


class PlainTerms(NamedTuple):
    """The place of a store, and who signs."""

    endpoint: str | None
    """``http://host:port``; ``None``: the region's own host."""
    region: str
    keys: tuple[str, str, str | None] | None
    """The key, the secret and the token; ``None``: requests are not signed."""

    def __repr__(self) -> str:
        return f"<PlainTerms of {self.endpoint or self.region}>"


def plain_terms(
    options: Mapping[str, Any], region: str | None, variables: Mapping[str, str]
) -> PlainTerms | None:
    """Return the terms on which requests are signed; ``None``: botocore must find them.

    Args:
        options: s3fs's options.
        region: The bucket's region; ``None``: that of the options and the variables.
        variables: The environment.
    """
    client = mapping_of(options, "client_kwargs")
    if not (options.keys() <= _KNOWN and client.keys() <= {"region_name"}):
        return None
    if _has_files(variables) or _has_other_variables(variables) or fsspec_is_configured():
        return None
    key, secret, token = (options.get(name) for name in ("key", "secret", "token"))
    anonymous = options.get("anon", False)
    if (key is None) != (secret is None) or (token and key is None) or "" in (key, secret):
        return None
    if key is None:
        key, secret, token = map(variables.get, _KEYS)
    if not isinstance(anonymous, bool) or not (anonymous or (key and secret)):
        return None
    given = (options.get("endpoint_url"), *map(variables.get, _ENDPOINTS))
    endpoint = next(filter(None, given), None)
    regions = (region, client.get("region_name"), variables.get(REGION))
    region = next((name for name in regions if name is not None), None)
    if endpoint is None and (region is None or not _REGION.fullmatch(region)):
        return None
    if region is not None and not _OTHER_REGION.fullmatch(region):
        return None
    if endpoint is not None and not _is_plain(endpoint):
        return None
    keys = (key, secret, token or None) if key and secret and not anonymous else None
    return PlainTerms(endpoint and endpoint.rstrip("/"), region or "us-east-1", keys)


def _is_plain(endpoint: str) -> bool:
    """Return whether an endpoint is a host alone, and not one of AWS."""
    try:
        _ = urlsplit(endpoint).port
    except ValueError:
        return False
    return bool(_ENDPOINT.fullmatch(endpoint)) and _AWS not in endpoint.lower()


def _has_files(variables: Mapping[str, str]) -> bool:
    """Return whether AWS's configuration has a file, which may say anything."""
    at_home = home()
    for variable, name in _FILES.items():
        path = _expanded(variables.get(variable)) or (at_home and at_home / name)
        if path and os.fspath(path) != os.devnull and Path(path).exists():
            return True
    return False


def _expanded(path: str | None) -> str | None:
    """Return a path as botocore opens it."""
    return path and os.path.expanduser(os.path.expandvars(path))  # noqa: PTH111 - without an error


def _has_other_variables(variables: Mapping[str, str]) -> bool:
    return any(
        name.startswith("FSSPEC_") or (name.startswith("AWS_") and name not in _VARIABLES)
        for name in variables
    )


class PlainSigner:
    """A signer with one pair of keys, which signs as botocore does, without its import.

    https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html

    Args:
        terms: Those of the options.
        clock: Returns seconds since 1970.
    """

    def __init__(self, terms: PlainTerms, clock: Callable[[], float] = time.time) -> None:
        self._terms, self._clock = terms, clock

    def fits(self, bucket: str) -> bool:
        """Return whether this signs for a bucket."""
        pattern = _IN_HOST if self._terms.endpoint is None else _BUCKET
        return pattern.fullmatch(bucket) is not None

    def sign(self, method: str, parameters: Mapping[str, str], lifetime: int) -> str:
        """Return the signed URL of a request.

        Args:
            method: botocore's name for the request: ``get_object`` or ``list_objects_v2``.
            parameters: Its arguments.
            lifetime: The seconds for which the signature is valid.
        """
        address = self._address(parameters["Bucket"], parameters.get("Key", ""))
        query = {_QUERY[name]: text for name, text in parameters.items() if name in _QUERY}
        if method == "list_objects_v2":
            query = {"list-type": "2", **query}
        if self._terms.keys is not None:
            return self._signed(address, query, lifetime, self._terms.keys)
        return f"{address}?{_encoded(query)}" if query else address

    def _address(self, bucket: str, key: str) -> str:
        path = quote(key, safe="/~")
        if self._terms.endpoint is None:
            return f"https://{bucket}.s3.{self._terms.region}.{_AWS}/{path}"
        return f"{self._terms.endpoint}/{bucket}" + (f"/{path}" if path else "")

    def _signed(
        self, address: str, query: dict[str, str], lifetime: int, keys: tuple[str, str, str | None]
    ) -> str:
        key, secret, token = keys
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._clock()))
        scope = (now[:8], self._terms.region, "s3", "aws4_request")
        query |= {
            "X-Amz-Algorithm": _ALGORITHM,
            "X-Amz-Credential": "/".join((key, *scope)),
            "X-Amz-Date": now,
            "X-Amz-Expires": str(lifetime),
            "X-Amz-SignedHeaders": "host",
        }
        if token is not None:
            query["X-Amz-Security-Token"] = token
        asked = _encoded(query)
        ordered = "&".join(sorted(asked.split("&")))  # as their names: none begins another
        host = f"host:{_host_of(address)}\n"
        request = ("GET", urlsplit(address).path, ordered, host, "host", "UNSIGNED-PAYLOAD")
        digest = sha256("\n".join(request).encode()).hexdigest()
        signing = f"AWS4{secret}".encode()
        for part in scope:
            signing = hmac.digest(signing, part.encode(), "sha256")
        text = "\n".join((_ALGORITHM, now, "/".join(scope), digest))
        signature = hmac.digest(signing, text.encode(), "sha256").hex()
        return f"{address}?{asked}&X-Amz-Signature={signature}"


def _encoded(query: Mapping[str, str]) -> str:
    return "&".join(f"{name}={quote(text, safe='')}" for name, text in query.items())


def _host_of(address: str) -> str:
    """Return the Host header of a request, which leaves out a scheme's own port."""
    parts = urlsplit(address)
    host, port = parts.netloc.lower(), parts.port
    if port is None:
        return host
    alone = host.rpartition(":")[0]
    return alone if port == (443 if parts.scheme == "https" else 80) else f"{alone}:{port}"
