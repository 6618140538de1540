"""The table of the schemes of URLs, which is asked wherever a scheme decides. Pure: no I/O.

A new store is a package in ``stores/`` and its line here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_AWS = (
    "AWS_CA_BUNDLE",
    "AWS_CONFIG_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "BOTO_CONFIG",
)
_AZURE = ("AZURE_CLIENT_CERTIFICATE_PATH", "AZURE_FEDERATED_TOKEN_FILE")
FSSPEC = "fsspec.filesystem_store.FilesystemStore"
_PREFIX = re.compile(r"(\w[\w+.-]*)://")
"""The scheme of a URL, or of each link of a chain of them."""


class Scheme(NamedTuple):
    """A line of the table."""

    name: str
    """The name under which the store is known, in measurements too; else fsspec's."""
    store: str = FSSPEC
    """The module and class of the store, below ``streamrec.stores``."""
    is_own: bool = True
    """True for a store of ours; ``::`` is then part of a name and begins no chain of fsspec's."""
    is_listed: bool = True
    """False if the store cannot list."""
    is_local: bool = False
    """True if there is little latency, so that a few ranges hide it, and nothing to log in to."""
    has_buckets: bool = False
    """True if a bucket precedes the name of an object, which may hold any character."""
    written: str = ""
    """The scheme that every URL of the store gets, so that an object has one name; empty: any."""
    errors: str = ""
    """The module below ``streamrec.stores`` that knows other errors of the store's library."""
    variables: tuple[str, ...] = ()
    """Variables of the environment that name files which the store's library opens."""


_HTTP = Scheme("http", "http.http_store.HttpStore", is_listed=False)
_S3 = Scheme("s3", "s3.s3_store.S3Store", has_buckets=True, errors="s3.s3_errors", variables=_AWS)
_GCS = Scheme(
    "gcs",
    "gcs.gcs_store.GCSStore",
    has_buckets=True,
    written="gs",
    errors="gcs.gcs_errors",
    variables=("GOOGLE_APPLICATION_CREDENTIALS",),
)
SCHEMES = {
    "file": Scheme("file", "local_store.LocalStore", is_local=True),
    "memory": Scheme("memory", is_local=True),
    "http": _HTTP,
    "https": _HTTP,
    "s3": _S3,
    "s3a": _S3,
    "gs": _GCS,
    "gcs": _GCS,
    "abfs": Scheme("abfs", is_own=False, variables=_AZURE),
    "abfss": Scheme("abfss", is_own=False, variables=_AZURE),
    "az": Scheme("az", is_own=False, variables=_AZURE),
    "hdfs": Scheme("hdfs", is_own=False),
    "hf": Scheme("hf", is_own=False, variables=("HF_TOKEN_PATH",)),
}
"""The schemes of which streamrec knows something; fsspec reads any other."""


def prefix_of(url: str) -> str:
    """Return the text before ``://`` in small letters; ``file`` for a path.

    Of a chain such as ``simplecache::s3://b/x`` it is the first link.
    """
    text, separator, _ = url.partition("://")
    return text.partition("::")[0].lower() if separator else "file"


def prefixes_in(url: str) -> list[str]:
    """Return the schemes of all links of a URL in small letters; none for a path."""
    return [text.lower() for text in _PREFIX.findall(url)]


def line_of(url: str) -> Scheme:
    """Return the line of a URL's or path's scheme, or one for fsspec where there is none."""
    prefix = prefix_of(url)
    return SCHEMES.get(prefix) or Scheme(prefix, is_own=False)


def is_own(url: str) -> bool:
    """Return whether a URL, or a path, is read by a store of ours."""
    return line_of(url).is_own
