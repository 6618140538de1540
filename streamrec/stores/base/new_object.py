"""New objects: written to a file, uploaded as a whole, or in parts while they are being written.

A store shows the object only when the upload is completed: whole, or not at all. An upload that is
neither completed nor aborted, because its process was killed, stays invisible.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from streamrec.flow.cleanup import end
from streamrec.stores.base.foreign_errors import translate_errors
from streamrec.surroundings import temporary_file

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from concurrent.futures import Future
    from contextlib import AbstractContextManager
    from datetime import datetime

    from streamrec.stores.base.protocol import NewObject
    from streamrec.values.columns import Bytes


BUFFER = 1 << 17
"""Bytes collected before they are written to the file, because records are often small. A dataset
may have a thousand shards open at once."""


class GuardedObject:
    """A new object of a library, with streamrec's errors in place of the library's.

    Args:
        url: The object's URL.
        target: What is written to.
        anonymous: True if its requests hold no credentials.
    """

    def __init__(self, url: str, target: NewObject, *, anonymous: bool = False) -> None:
        self._url, self._anonymous = url, anonymous
        self.target = target

    def write(self, data: Bytes) -> int:
        """Append bytes; see :class:`NewObject`."""
        with self._guard():
            return self.target.write(data)

    def flush(self) -> None:
        """Hand bytes to the operating system, where the object is a file."""
        with self._guard():
            self.target.flush()

    def commit(self) -> None:
        """Make the object visible."""
        with self._guard():
            self.target.commit()

    def discard(self) -> None:
        """Remove what was written, unless it is committed."""
        self.target.discard()

    def _guard(self) -> AbstractContextManager[None]:
        return translate_errors(self._url, writing=True, anonymous=self._anonymous)


class SpooledObject:
    """A local temporary file that is uploaded as a whole.

    Some filesystems show parts of a broken upload, so that it begins only when the object is
    complete. The temporary file has no name: the kernel removes it when the process ends.

    Args:
        url: The object's URL.
        upload: Sends the file of a path.
    """

    def __init__(self, url: str, upload: Callable[[str], object]) -> None:
        self._upload = upload
        self._file = temporary_file(f"an upload to {url.partition('://')[0]}", buffering=BUFFER)

    def write(self, data: Bytes) -> int:
        """Append bytes."""
        return self._file.write(data)

    def flush(self) -> None:
        """Hand the bytes to the operating system."""
        self._file.flush()

    def commit(self) -> None:
        """Make the object visible."""
        # The upload opens the file once more, and would not see what this buffer still holds.
        self._file.flush()
        self._file.seek(0)  # outside of Linux, /dev/fd shares the position
        self._upload(f"/dev/fd/{self._file.fileno()}")

    def discard(self) -> None:
        """Remove the file."""
        with suppress(OSError):
            self._file.close()


T = TypeVar("T")

PART = 8 << 20
"""The bytes of a part. S3 takes parts of 5 MiB or more, Google multiples of 256 KiB; of 8 MiB, the
round trip of 50 ms is a tenth of the time that a stream of 20 MB/s takes."""
GROWTH = 2000
"""Parts after which their size is doubled, so that the 10,000 that S3 takes hold 5 TB, the largest
object."""
LAG = timedelta(seconds=2)
"""The time by which an object may be older than the answer that began its upload: S3 notes whole
seconds, of the moment before it answers."""
ABORT_SECONDS = 5.0
"""Seconds for which an abort is waited for: a store that answers takes a round trip."""


def date_of(headers: Mapping[str, str]) -> datetime | None:
    """Return the store's time in the head of an answer."""
    from email.utils import parsedate_to_datetime  # it is imported slowly, and files need none

    with suppress(KeyError, ValueError):
        return parsedate_to_datetime(headers["Date"])
    return None


class UploadSession(ABC):
    """The requests of one upload to a store; its coroutines run in the loop of fsspec's threads."""

    at_once: int
    """The number of parts that may be sent at the same time; with 1 they are sent in order."""
    loop: asyncio.AbstractEventLoop
    begun: datetime | None = None
    """The store's time when the upload began; ``None``: it did not say."""

    @abstractmethod
    async def put_whole(self, data: bytes) -> None:
        """Write an object of less than one part."""

    @abstractmethod
    async def put_part(self, number: int, data: bytes) -> None:
        """Send a part, the first of which begins the upload; parts are numbered from 0."""

    @abstractmethod
    async def complete(self, rest: bytes) -> None:
        """Make the object visible when all parts have arrived.

        Args:
            rest: The last part, which may be empty, where parts are sent in order. Where several
                are sent at once, it was sent beside the others, and nothing is left.
        """

    @abstractmethod
    async def look_up(self) -> tuple[int, datetime]:
        """Return the size of the object that is there now, and when it was written."""

    @abstractmethod
    async def abort(self) -> None:
        """Give up an upload that has begun; a second call does nothing."""


def upload(file: str, session: UploadSession) -> None:
    """Upload a local file in parts.

    Raises:
        Exception: A part could not be sent; of any library.
    """
    target = PartUpload(session)
    try:
        with open(file, "rb", buffering=0) as source:  # noqa: PTH123 - it may be of /dev/fd
            while piece := source.read(PART):
                target.write(piece)
        target.commit()
    finally:
        target.discard()


class PartUpload:
    """A new object that is uploaded in parts while it is written.

    It holds the part that is being written and those that are being sent.
    """

    def __init__(self, session: UploadSession) -> None:
        self._session = session
        self._pieces: list[bytes] = []
        self._held = 0
        self._count = self._total = 0
        self._sending: deque[Future[None]] = deque()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_open = True

    def write(self, data: Bytes) -> int:
        """Take bytes, and send each part that is complete; waits while enough are being sent.

        Raises:
            Exception: A part could not be sent; of any library.
        """
        # Counted in bytes, whatever the items of the buffer are.
        view = memoryview(data).cast("B")
        taken = 0
        while taken < len(view):
            # A copy, since the caller may use its buffer again before the part is sent.
            piece = bytes(view[taken : taken + self._size - self._held])
            self._total += len(piece)
            self._pieces.append(piece)
            self._held += len(piece)
            taken += len(piece)
            if self._held == self._size:
                self._send()
        return taken

    def flush(self) -> None:
        """Do nothing, since a part leaves only when it is complete."""

    def commit(self) -> None:
        """Send what is left, and make the object visible."""
        if self._count:
            self._complete()
        else:
            self._call(self._session.put_whole(self._take_part()))
        self._is_open = False

    def discard(self) -> None:
        """Abort the upload, unless it is committed."""
        self._take_part()
        if not self._is_open:
            return
        self._is_open = False
        self._sending.clear()
        # Where it cannot be aborted, the store removes it in time, or a rule of the bucket does.
        with suppress(Exception):  # of any library
            self._call(self._abort())

    @property
    def _size(self) -> int:
        return PART << (self._count // GROWTH)

    def _complete(self) -> None:
        # Where parts may overtake each other the last one is sent like any other; else it ends the
        # upload.
        if self._held and self._session.at_once > 1:
            self._send()
        while self._sending:
            self._wait()
        try:
            self._call(self._session.complete(self._take_part()))
        except Exception:  # of any library
            if not self._is_there():
                raise

    def _is_there(self) -> bool:
        """Return whether the object is there, whole, because the answer alone was lost.

        A request that is sent again then finds no upload. An older object of this size is not it.
        """
        begun = self._session.begun
        with suppress(Exception):  # of any library
            size, modified = self._call(self._session.look_up())
            return begun is not None and size == self._total and modified >= begun - LAG
        return False

    def _send(self) -> None:
        # The writer waits here, so that memory holds the parts being sent and no others.
        while len(self._sending) >= self._session.at_once:
            self._wait()
        self._sending.append(self._start(self._send_part(self._count, self._take_part())))
        self._count += 1

    def _take_part(self) -> bytes:
        """Return the part that is being written, and begin another one."""
        pieces, self._pieces, self._held = self._pieces, [], 0
        return b"".join(pieces)

    async def _send_part(self, number: int, part: bytes) -> None:
        """Send a part, as one of the tasks that are to end before the upload is aborted."""
        task: asyncio.Task[Any] | None = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._session.put_part(number, part)
        finally:
            self._tasks.discard(task)

    async def _abort(self) -> None:
        # A part that arrived later would stay in the store.
        await end(*self._tasks)
        async with asyncio.timeout(ABORT_SECONDS):
            await self._session.abort()

    def _wait(self) -> None:
        self._sending.popleft().result()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._start(coroutine).result()

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._session.loop)
