"""The reading of Arrow's files and streams in batches whose bytes are known before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamrec.errors import DataError
from streamrec.sources.arrow_fields import module
from streamrec.sources.arrow_messages import MAGIC, blocks_of, message_at
from streamrec.sources.held_file import HeldFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from streamrec.sources.arrow_messages import ArrowMessage
    from streamrec.sources.memory import Memory
    from streamrec.stores.stored_files import StoredFile


class IpcReader:
    """A reader of one file, in the form of a file or of a stream.

    Args:
        file: The file.
        opened: Opens it for Arrow.
        memory: The bounds of what is read together.
    """

    def __init__(self, file: StoredFile, opened: Callable[..., Any], memory: Memory) -> None:
        self._file, self._memory = file, memory
        pyarrow, source = module("pyarrow"), opened(file)
        self._held = None if file.is_local else HeldFile(source)
        self._looked = opened(file) if self._held is None else source
        self._is_file = bytes(self._read(0, len(MAGIC))) == MAGIC
        given = source if self._held is None else pyarrow.PythonFile(self._held, "r")
        given.seek(0)
        self._reader = (pyarrow.ipc.open_file if self._is_file else pyarrow.ipc.open_stream)(given)

    def batches(self) -> Iterator[Any]:
        """Yield the batches.

        Raises:
            DataError: The file is damaged.
            RecordTooLarge: It needs more memory than there is.
        """
        for batch in self._of_file() if self._is_file else self._of_stream():
            batch.validate(full=True)  # Arrow follows places that the file tells
            yield batch

    def _of_file(self) -> Iterator[Any]:
        try:
            dictionaries, batches = blocks_of(self._read, self._file.size)
        except ValueError as error:
            raise self._damaged(error) from None
        for begin in dictionaries:
            self._next(begin)
        for number, begin in enumerate(batches):
            self._next(begin)
            yield self._reader.get_batch(number)

    def _of_stream(self) -> Iterator[Any]:
        at = 0
        while (message := self._next(at)) is not None:
            if message.has_rows:
                yield self._reader.read_next_batch()
            at = message.end

    def _next(self, begin: int) -> ArrowMessage | None:
        """Return the message at a place, when its memory is admitted; see :func:`message_at`."""
        try:
            message = message_at(self._read, begin)
            if message is None:
                return None
            self._check_end(message)
            if self._held is None:
                taken = message.decompressed(self._read)
            else:
                stored = message.end - begin
                self._admit(stored, begin)
                self._held.hold(begin, stored)
                taken = stored + message.decompressed(self._read)
        except ValueError as error:
            raise self._damaged(error) from None
        self._admit(taken, begin)
        return message

    def _check_end(self, message: ArrowMessage) -> None:
        if message.end > self._file.size:
            raise ValueError("a message is cut off")

    def _admit(self, size: int, begin: int) -> None:
        what = f"the batch at byte {begin}"
        self._memory.check(size, self._memory.unit, what, self._file)

    def _read(self, at: int, size: int) -> memoryview:
        if self._held is not None:
            return self._held.read_at(at, size)
        self._looked.seek(at)
        return memoryview(self._looked.read_buffer(size)).cast("B")

    def _damaged(self, error: ValueError) -> DataError:
        if isinstance(error, DataError):
            return error
        return DataError(f"Arrow cannot read it: {error}; write the file anew", url=str(self._file))
