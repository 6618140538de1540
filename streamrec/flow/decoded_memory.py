"""The memory of a run's decoded batches, from the claim of a decoding thread to the consumer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Abandoned(Exception):
    """The run has ended, and nobody waits for this batch any more."""


def _nothing(_: int) -> None:
    """Borrow nothing: the run may overdraw."""


class DecodedMemory:
    """The bytes that decoded batches hold together, of which threads claim some and may wait.

    The batch that is delivered next never waits, so that a consumer gets it however large it is.
    The others wait until they fit. A batch that is delivered holds its bytes until the next one is:
    the consumer has it that long.

    Args:
        capacity: Bytes of the batches together.
        borrow: Called, in the thread that claims, with the bytes that the next batch takes beyond
            the capacity; they are the run's from then on. What it raises, the claim raises.
    """

    def __init__(self, capacity: int, borrow: Callable[[int], object] = _nothing) -> None:
        self.capacity = capacity
        self.in_use = 0
        """Bytes of the batches in flight, and of the one that was delivered last."""
        self._borrow = borrow
        self._waiting: dict[BatchInFlight, None] = {}  # in the order of delivery
        self._delivered: BatchInFlight | None = None
        self._closed = False
        self._changed = threading.Condition()

    def __repr__(self) -> str:
        return f"<DecodedMemory {self.in_use} of {self.capacity} bytes, {len(self._waiting)} wait>"

    def open(self) -> BatchInFlight:
        """Return the account of another batch, which is delivered after all before it."""
        batch = BatchInFlight(self)
        with self._changed:
            self._waiting[batch] = None
        return batch

    def close(self) -> None:
        """Abandon the batches that are not delivered: their claims raise :class:`Abandoned`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def check(self) -> None:
        """Raise :class:`Abandoned` after :meth:`close`."""
        if self._closed:
            raise Abandoned

    def claim(self, batch: BatchInFlight, size: int) -> None:
        """Take more bytes for a batch, as soon as they fit or it is the next one.

        Raises:
            Abandoned: The run has ended.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._may_take(batch, size))
            self.check()
            self._change(batch, size)
            lacking = max(0, self.in_use - self.capacity)
        if lacking:
            self._borrow(lacking)
            if self._borrow is not _nothing:
                self.capacity += lacking

    def settle(self, batch: BatchInFlight, size: int) -> None:
        """Hold exactly so many bytes for a batch, which has been decoded."""
        with self._changed:
            self._change(batch, size - batch.held)

    def deliver(self, batch: BatchInFlight) -> None:
        """Note that the consumer has a batch, and so no longer the one before."""
        with self._changed:
            if self._delivered is not None:
                self._change(self._delivered, -self._delivered.held)
            self._waiting.pop(batch, None)
            self._delivered = batch
            self._changed.notify_all()

    def _may_take(self, batch: BatchInFlight, size: int) -> bool:
        return self.in_use + size <= self.capacity or next(iter(self._waiting), None) is batch

    def _change(self, batch: BatchInFlight, more: int) -> None:
        batch.held += more
        self.in_use += more
        if more < 0:
            self._changed.notify_all()


class BatchInFlight:
    """The account of one batch.

    Args:
        memory: Of the run.
    """

    __slots__ = ("_memory", "held")

    def __init__(self, memory: DecodedMemory) -> None:
        self._memory = memory
        self.held = 0
        """Bytes that it holds."""

    def admit(self, size: int) -> None:
        """Claim bytes; see :meth:`DecodedMemory.claim`."""
        self._memory.claim(self, size)

    def settle(self, size: int) -> None:
        """Hold so many bytes; see :meth:`DecodedMemory.settle`."""
        self._memory.settle(self, size)

    def deliver(self) -> None:
        """Be the consumer's; see :meth:`DecodedMemory.deliver`."""
        self._memory.deliver(self)
