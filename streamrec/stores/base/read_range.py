"""The reading of one range into memory, with retries: for indexes, samples, heads and checks."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from streamrec.errors import StoreError, StoreUnavailable
from streamrec.flow.retry import Backoff, retry
from streamrec.flow.silence import Silence

if TYPE_CHECKING:
    from streamrec.stores.base.protocol import ObjectInfo, Store
    from streamrec.values.columns import ByteArray

RETRIES = 8
"""Consecutive failures without a received byte that are retried."""
SILENCE = 60.0
"""Seconds that a server may send nothing in the middle of a body."""


async def read_range(
    store: Store, found: ObjectInfo, start: int, stop: int, *, retries: int = RETRIES
) -> tuple[ByteArray, ObjectInfo]:
    """Read bytes ``[start, stop)`` of an object, clipped to its end, and its metadata.

    A body that breaks off is resumed at its last byte, in the version that it began with.

    Args:
        store: The object's store.
        found: The object, and the version to read if it names one.
        start: The first byte, from 0.
        stop: One past the last byte.
        retries: Consecutive failures without a received byte that are retried.

    Raises:
        StoreError: It is not retryable, or the last retry failed.
    """
    memory, filled, info = np.empty(0, np.uint8), 0, found
    backoff = Backoff(Random())

    def received(silence: Silence, count: int) -> None:
        nonlocal filled
        silence.heard()
        filled += count
        backoff.reset()

    async def attempt() -> None:
        nonlocal memory, info
        async with store.open_range(info.url, start + filled, stop, etag=info.etag) as body:
            info = body.info
            if not filled:
                memory = np.empty(max(0, min(stop, info.size or 0) - start), np.uint8)
            try:
                async with Silence(SILENCE) as silence:
                    await body.fill(memory.data[filled:], partial(received, silence))
            except TimeoutError:
                raise StoreUnavailable(
                    "the server sent nothing for too long; check the server and the network",
                    url=info.url,
                ) from None
            if filled < len(memory):
                raise StoreUnavailable("the response ended early; try again", url=info.url)

    try:
        await retry(attempt, backoff, retries)
    except StoreError as error:
        raise error.at(start + filled) from None
    return memory, info
