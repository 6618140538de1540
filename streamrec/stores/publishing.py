"""Showing of an object under another name, in every store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec.stores.base.protocol import Copying, ObjectInfo, in_thread
from streamrec.stores.base.read_range import read_range

if TYPE_CHECKING:
    from streamrec.stores.base.protocol import NewObject, Store

PIECE = 8 << 20
"""Bytes that are read and written at a time, where a store does not copy by itself."""


async def publish(store: Store, url: str, other: str, size: int) -> None:
    """Show an object under another name, in place of an older one.

    A store that can rename does; elsewhere the present name is still to be deleted.

    Args:
        store: The store of both.
        url: The object's URL.
        other: The other URL, in the same directory.
        size: The object's bytes.

    Raises:
        StoreError: It cannot be copied.
    """
    if isinstance(store, Copying):
        await store.copy(url, other, size)
        return
    target = await in_thread(store.put, other)
    try:
        await _pour(store, url, target, size)
        await in_thread(target.commit)
    finally:
        await in_thread(target.discard)


async def _pour(store: Store, url: str, target: NewObject, size: int) -> None:
    info = ObjectInfo(url)
    for start in range(0, size, PIECE):
        # The first answer pins the version of the others.
        data, info = await read_range(store, info, start, min(start + PIECE, size))
        await in_thread(target.write, data.data)
