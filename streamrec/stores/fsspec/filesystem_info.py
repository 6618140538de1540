"""Size and version in the ``info`` of a filesystem. Pure: no I/O.

The keys are those of fsspec's own filesystems and of adlfs, gcsfs, huggingface_hub, s3fs, ossfs and
pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from streamrec.stores.base.protocol import NO_SIZE
from streamrec.stores.base.versions import version_of as made_of

_IDENTITIES = (
    "generation", "ETag", "etag", "e_tag", "lfs", "blob_id", "sha", "sha256", "oid", "md5Hash",
    "md5", "Content-MD5", "content_md5", "Digest", "checksum", "hash", "CRC",
)  # fmt: skip
_TIMES = (
    "mtime", "modified", "LastModified", "last_modified", "Last-Modified", "modify",
    "modificationTime", "updated", "date_time", "time", "created",
)  # fmt: skip


def size_of(info: Mapping[str, Any]) -> int | None:
    """Return the size in bytes, or ``None`` if the filesystem does not report a possible one."""
    size = info.get("size")
    return int(size) if isinstance(size, int | float) and 0 <= size < NO_SIZE else None


def version_of(info: Mapping[str, Any]) -> str | None:
    """Return the version in the form of an ETag: a hash or number, else times and size.

    Returns:
        The version; ``None`` if the filesystem reports none of them.
    """
    for name in _IDENTITIES:
        if info.get(name):
            return made_of(etag=_text(info[name]))
    parts = [_text(info[name]) for name in ("ino", *_TIMES) if info.get(name)]
    known = any(info.get(name) for name in _TIMES)
    return made_of(etag="-".join([*parts, _text(info.get("size"))])) if known else None


def _text(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, datetime):  # some filesystems list a number, but report a date
        return str((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp())
    if isinstance(value, Mapping):  # of huggingface_hub: size, sha256, pointer_size
        return str(value.get("sha256") or sorted(value.items()))
    return str(value)
