"""Functions that read a dataset's index and compare it with the shards in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from streamrec.errors import ObjectNotFound, StaleIndex
from streamrec.formats.shards.index import LARGEST, Index, index_url
from streamrec.plan.fingerprint import relative_names
from streamrec.stores.base import ObjectInfo, bare_url, same_version
from streamrec.stores.read_range import read_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.formats.shards.index import ShardEntry
    from streamrec.stores.open import Stores

__all__ = ["check_version", "load_index", "selected"]

FIRST = 1 << 16
"""Bytes that are asked for before the size is known; most indices are no larger."""
AGAIN = "write the index again with `streamrec index`"


async def load_index(
    stores: Stores, setting: Literal[True] | str, objects: Sequence[ObjectInfo]
) -> Index:
    """Read an index and select the entries of these shards.

    Args:
        stores: The stores, one of which has the index.
        setting: The index's URL; ``True``: it lies beside the shards.
        objects: The shards.

    Raises:
        ObjectNotFound: There is no index.
        MalformedIndex: It cannot be read.
        StaleIndex: It does not describe these shards.
    """
    url = setting if isinstance(setting, str) else index_url([found.url for found in objects])
    try:
        data = await _read(stores, url)
    except ObjectNotFound:
        raise ObjectNotFound(
            "there is no index; write one with `streamrec index`, or set index to its URL",
            url=url,
        ) from None
    return selected(Index.parse(data, url=url), objects)


def selected(index: Index, objects: Sequence[ObjectInfo]) -> Index:
    """Select the entries of these shards, in their order.

    Raises:
        StaleIndex: A shard is missing in the index, or has changed since.
    """
    names = relative_names([bare_url(found.url) for found in objects])
    return Index(
        tuple(_entry(index, name, found) for name, found in zip(names, objects, strict=True))
    )


def _entry(index: Index, name: str, found: ObjectInfo) -> ShardEntry:
    entry = index.get(name)
    if entry is None:
        raise StaleIndex(f"the index has no shard of this name ({name}); {AGAIN}", url=found.url)
    check_version(found, entry.size, entry.etag)
    return entry


def check_version(found: ObjectInfo, size: int, etag: str | None) -> None:
    """Check that a shard is the version that was indexed.

    Raises:
        StaleIndex: They differ.
    """
    if found.size is not None and found.size != size:
        what = f"the shard has {found.size} bytes, and had {size} when it was indexed"
    elif found.etag and etag and not same_version(found.etag, etag):
        what = f"the shard's version is {found.etag}, and was {etag} when it was indexed"
    else:
        return
    raise StaleIndex(f"the index is stale: {what}; {AGAIN}", url=found.url)


async def _read(stores: Stores, url: str) -> bytes:
    """Read the whole object: its first bytes, which come with its size, and then the rest."""
    store = stores.store_for(url)
    data, info = await read_range(store, ObjectInfo(url), 0, FIRST)
    size = min(info.size or 0, LARGEST + 1)
    if len(data) == size:
        return data.tobytes()
    rest, _ = await read_range(store, info, len(data), size)
    return data.tobytes() + rest.tobytes()
