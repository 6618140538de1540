"""The directory or bucket that writers write to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

REGION = "us-east-1"


@dataclass(frozen=True)
class Place:
    """A local directory, or a bucket of a store."""

    directory: str
    """A path, or ``s3://`` and the bucket's name."""
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    """s3fs's options; of a local directory, none."""

    @property
    def bucket(self) -> str:
        """The bucket's name; empty for a local directory."""
        return urlsplit(self.directory).netloc

    def url(self, name: str) -> str:
        """Return the path or URL of an object."""
        return f"{self.directory}/{name}"

    def create(self, url: str) -> Any:
        """Return a new file; in a store, s3fs's, which uploads in parts."""
        if not self.bucket:
            return open(url, "wb")  # noqa: PTH123 - the caller closes it
        from s3fs import S3FileSystem

        return S3FileSystem(**self.storage_options).open(url, "wb")

    def variables(self) -> dict[str, str]:
        """Return the variables that tell boto3 where the store is, and the keys."""
        options = self.storage_options
        if not options:
            return {}
        return {
            "AWS_ACCESS_KEY_ID": options["key"],
            "AWS_SECRET_ACCESS_KEY": options["secret"],
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": options["endpoint_url"],
            "S3_ENDPOINT_URL": options["endpoint_url"],
            # Arrow's client would send checksums behind the body, which the store does not read.
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
        }
