"""The writer of one shard, which appears whole under its name or not at all."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeAlias, get_args

from streamrec import kernel
from streamrec.config import Compression
from streamrec.config.arguments import options_of, place_text
from streamrec.config.dataset import compression_name
from streamrec.errors import ConfigError, StoreError
from streamrec.formats.examples.encode import encode_blocks, no_note
from streamrec.formats.examples.example import encode_example
from streamrec.formats.shards.compression import Compressor, of_name
from streamrec.formats.shards.tfrecord import FOOTER, HEADER, frame
from streamrec.masking import masked
from streamrec.stores.blocking import new_object
from streamrec.values.columns import Bytes, BytesColumn
from streamrec.values.record_rows import RecordRows

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from types import TracebackType

    from streamrec.stores.base.protocol import NewObject
    from streamrec.values.columns import ByteArray

Record: TypeAlias = Bytes | Mapping[str, Any]


LARGE = 32 << 10
"""The size, in bytes, from which on a record is framed by itself, which spares a copy."""
HELD_BYTES = 128 << 10
"""Bytes of smaller records that are held, to be framed together."""
COST = 64
"""Bytes that a held record takes besides its own."""


class WholeOrAbsent(ABC):
    """A writer whose ``with`` block ends with ``close``, or after an error with ``discard``."""

    @abstractmethod
    def close(self) -> None:
        """Make what was written appear."""

    @abstractmethod
    def discard(self) -> None:
        """Discard what was written."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


class TFRecordWriter(WholeOrAbsent):
    """A writer of one TFRecord shard.

    The bytes go to a temporary file; only ``close`` makes them appear under the shard's name.
    A local file is then renamed, and for a URL the bytes are uploaded. An exception inside ``with``
    discards them.

    Args:
        path: A local path, ``file://``, or a URL of any fsspec filesystem.
        compression: ``None``, ``"gzip"``, ``"zlib"``, ``"zstd"``, or ``"auto"``: by the path's
            suffix (``.gz``, ``.zst``, ...). TensorFlow's names are taken too.
        storage_options: The options for fsspec, for a URL.

    Raises:
        ConfigError: The scheme or the compression is not known.
        ObjectNotFound: The directory does not exist.
        AccessDenied: It may not be written to.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        compression: str | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._target: NewObject | None = None
        self.url = place_text(path)
        kind = compression_of(compression, self.url)
        self._compressor = None if kind == "none" else Compressor(kind)
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.records = 0
        """The number of records written."""
        self.nbytes = 0
        """The number of bytes written, frames included, before compression."""
        self.stored = 0
        """The number of bytes that the shard has when it is closed; before, of those handed on."""
        with self._name_shard():
            self._target = self._new_target(options_of(storage_options))

    def __repr__(self) -> str:
        state = "open" if self._target else "closed"
        written = f"{self.records} records, {self.nbytes} bytes"
        return f"<TFRecordWriter {masked(self.url)}, {state}: {written}>"

    def write(self, record: Record) -> None:
        """Append one record.

        Args:
            record: Bytes as they are, or a mapping, which ``encode_example`` serializes.

        Raises:
            WrongFeatureType: A value of the mapping has no representation.
            TypeError: Neither bytes nor a mapping.
        """
        if self._target is None:
            raise self._closed_error()
        payload = payload_of(record)
        self.records += 1
        self.nbytes += len(payload) + HEADER + FOOTER
        # A large record is framed by itself, without a copy into the others.
        if len(payload) >= LARGE:
            self._write_held()
            self._hand_on(frame(payload))
            return
        self._held.append(payload)
        self._held_bytes += len(payload) + COST
        if self._held_bytes >= HELD_BYTES:
            self._write_held()

    def write_many(self, records: Iterable[Record] | BytesColumn | Mapping[str, Any]) -> None:
        """Append records.

        Args:
            records: Single records, as ``write`` takes them: if one is refused, the records before
                it have been written. Or, faster, all at once: a ``BytesColumn`` of records, or a
                mapping of columns or a batch, which ``encode_examples`` serializes.
        """
        if isinstance(records, Mapping):
            for frames in encode_blocks(records, no_note, framed=True):
                self.write_frames(frames.values, len(frames))
        elif isinstance(records, BytesColumn):
            self.write_rows(RecordRows.from_column(records))
        else:
            for record in records:
                self.write(record)

    def write_rows(self, rows: RecordRows) -> None:
        """Append the serialized records that rows refer to."""
        self.write_frames(kernel.frame_records(rows), len(rows))

    def write_frames(self, frames: ByteArray, records: int) -> None:
        """Append the frames of so many records, which lie end to end."""
        self._write_held()
        # What is held goes first, so that records keep their order.
        self._hand_on(frames.data)
        self.records += records
        self.nbytes += len(frames)

    def flush(self) -> None:
        """Hand buffered bytes to the operating system; the shard still does not appear."""
        self._write_held()
        target = self._open_target()
        with self._name_shard():
            if self._compressor is not None:
                self.stored += target.write(self._compressor.flush())
            target.flush()

    def close(self) -> None:
        """Make the shard appear under its name; a second call does nothing.

        Raises:
            StoreError: It cannot be stored; what was written is discarded.
        """
        if self._target is None:
            return
        target = self._target
        try:
            self._write_held()
            with self._name_shard():
                if self._compressor is not None:
                    self.stored += target.write(self._compressor.finish())
                target.commit()
        finally:
            self._target = None
            target.discard()

    def discard(self) -> None:
        """Discard the bytes written; an older shard of the same name stays as it is."""
        if self._target is not None:
            # Forgotten first: a discard that fails must not be tried again by __del__.
            target, self._target = self._target, None
            target.discard()

    def __del__(self) -> None:
        # The attribute is missing where the constructor failed before it.
        if getattr(self, "_target", None) is not None:
            self.discard()
            message = (
                f"{self!r} was never closed, so its records are discarded; call close(), or use "
                "it in a with statement"
            )
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)

    def _new_target(self, storage_options: Mapping[str, Any]) -> NewObject:
        return new_object(self.url, storage_options)

    @contextmanager
    def _name_shard(self) -> Iterator[None]:
        """Have errors name the shard, which may be written under another name."""
        try:
            yield
        except StoreError as error:
            raise error.about(self.url) from None

    def _open_target(self) -> NewObject:
        if self._target is None:
            raise self._closed_error()
        return self._target

    def _closed_error(self) -> ValueError:
        return ValueError(f"{self!r} takes no more records; make a new writer")

    def _write_held(self) -> None:
        """Frame the records that are held, all together."""
        if self._held:
            held, self._held, self._held_bytes = self._held, [], 0
            self._hand_on(kernel.frame_records(RecordRows.of(held)).data)

    def _hand_on(self, frames: Bytes) -> None:
        target, compressor = self._open_target(), self._compressor
        with self._name_shard():
            self.stored += target.write(
                frames if compressor is None else compressor.compress(frames)
            )


def compression_of(name: Any, url: str) -> Compression:
    """Return the compression of a shard that is written.

    Raises:
        ConfigError: There is no such compression.
    """
    kind: Any = compression_name(name)
    if kind == "auto":
        kind = of_name(url)
    if kind not in get_args(Compression):
        choices = ", ".join(map(repr, get_args(Compression)))
        raise ConfigError(f"there is no compression {name!r}; choose 'auto', {choices} or None")
    compression: Compression = kind
    return compression


def payload_of(record: Record) -> bytes:
    """Return a record's bytes.

    Raises:
        WrongFeatureType: A value of a mapping has no representation.
        TypeError: It is neither bytes nor a mapping.
    """
    if isinstance(record, bytes):
        return record
    if isinstance(record, bytearray | memoryview):
        return bytes(record)  # the caller may change it before it is framed
    if isinstance(record, Mapping):
        return encode_example(record)
    # A DataFrame gives its columns' names when it is iterated over.
    of_pandas = hasattr(record, "to_dict") or isinstance(record, str)
    raise TypeError(
        f"a record must be bytes or a mapping of features, not {type(record).__name__}; "
        "serialize it, or give its features as a dict"
        + (", or a DataFrame's columns as write_many(frame.to_dict('list'))" if of_pandas else "")
    )
