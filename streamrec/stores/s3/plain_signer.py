"""Signing of S3 requests without botocore's client, for the options that most programs have.

s3fs, aiobotocore and a client with its description of the service take 0.15 s of CPU time to import
and make. What they do with an endpoint or a region and a pair of keys is known: this module does
the same, with botocore's signature. All else is left to :mod:`streamrec.stores.s3.sdk_signer`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from streamrec.stores.base.source_text import fsspec_is_configured
from streamrec.stores.http.transport import OPTIONS
from streamrec.stores.s3.s3_options import REGION, mapping_of
from streamrec.surroundings import home

if TYPE_CHECKING:
    from collections.abc import Mapping

_KNOWN = frozenset({"anon", "client_kwargs", "endpoint_url", "key", "secret", "token"}) | OPTIONS
"""Options of which this module knows what s3fs makes of them."""
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_FILES = {
    "AWS_CONFIG_FILE": ".aws/config",
    "AWS_SHARED_CREDENTIALS_FILE": ".aws/credentials",
}
"""Variables for botocore's files, and the files below the home where they are not set."""
_VARIABLES = frozenset(
    {
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", REGION),
        *("AWS_CA_BUNDLE", "AWS_EC2_METADATA_DISABLED", "AWS_EXECUTION_ENV", "AWS_PAGER"),
        *("AWS_MAX_ATTEMPTS", "AWS_RETRY_MODE", *_ENDPOINTS, *_FILES),
    }
)
"""Variables that change nothing else. Any other of AWS's may change how requests are signed."""
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
    """The key, the secret and the token of the options; ``None``: those of the environment."""
    anonymous: bool

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
    named = variables.get("AWS_ACCESS_KEY_ID") and variables.get("AWS_SECRET_ACCESS_KEY")
    anonymous = options.get("anon", False)
    if (key is None) != (secret is None) or (token and key is None) or "" in (key, secret):
        return None
    if not isinstance(anonymous, bool) or not (anonymous or key is not None or named):
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
    keys = None if key is None or secret is None else (key, secret, token or None)
    return PlainTerms(endpoint and endpoint.rstrip("/"), region or "us-east-1", keys, anonymous)


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
    """A signer with one pair of keys.

    Args:
        terms: Those of the options.
    """

    def __init__(self, terms: PlainTerms) -> None:
        self._terms = terms
        self._credentials: Any = None
        if not terms.anonymous:
            from botocore.auth import S3SigV4QueryAuth
            from botocore.awsrequest import AWSRequest
            from botocore.credentials import Credentials, EnvProvider

            self._auth, self._request = S3SigV4QueryAuth, AWSRequest
            keys = terms.keys
            self._credentials = EnvProvider().load() if keys is None else Credentials(*keys)

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
        if self._credentials is None:
            return f"{address}?{urlencode(query, quote_via=quote)}" if query else address
        request = self._request(method="GET", url=address, params=query)
        self._auth(self._credentials, "s3", self._terms.region, lifetime).add_auth(request)
        return str(request.url)

    def _address(self, bucket: str, key: str) -> str:
        path = quote(key, safe="/~")
        if self._terms.endpoint is None:
            return f"https://{bucket}.s3.{self._terms.region}.{_AWS}/{path}"
        return f"{self._terms.endpoint}/{bucket}" + (f"/{path}" if path else "")
