"""Reading of what stands beside shards: an index, or a manifest.

The query of an http URL may be a signature. One of a folder opens what is beside the shards, too;
it is the same for all of them. One of an object opens nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec.config.places import is_http
from streamrec.errors import AccessDenied, ConfigError
from streamrec.stores.base.protocol import ObjectInfo, read_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.stores.open import Stores


async def read_beside(
    stores: Stores, url: str, shards: Sequence[str], most: int, *, what: str, remedy: str
) -> bytes:
    """Read an object that stands beside shards.

    Args:
        stores: The stores, one of which has the object.
        url: The object, with the query that all shards share.
        shards: The shards.
        most: The most bytes that are read.
        what: The object in words, for errors.
        remedy: What to do if the shards' signatures do not open it.

    Raises:
        ConfigError: The shards have signatures, and those do not open it.
        StoreError: It cannot be read.
    """
    try:
        data, _ = await read_range(stores.store_for(url), ObjectInfo(url), 0, most)
    except AccessDenied as error:
        if not any(is_http(shard) and "?" in shard for shard in shards):
            raise
        raise ConfigError(
            f"the {what} beside the shards cannot be read ({error}): the signature of a URL opens "
            f"one object, unless its policy names a folder; {remedy}"
        ) from None
    return data.tobytes()
