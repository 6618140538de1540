"""Writing one shard: it appears whole under its name, or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, Self, TypeAlias, get_args
from urllib.parse import unquote, urlsplit

from streamrec import kernel
from streamrec.config import Compression, compression_name
from streamrec.errors import AccessDenied, ConfigError, ObjectNotFound, StoreError
from streamrec.formats.compression import Compressor, of_name
from streamrec.formats.encode import encode_examples
from streamrec.formats.example import encode_example
from streamrec.formats.tfrecord import frame
from streamrec.types import Bytes, BytesColumn, RecordRows

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["TFRecordWriter", "write_object"]

Record: TypeAlias = Bytes | Mapping[str, Any]

_BUFFER = 1 << 20
"""Bytes that are collected before they go to the file: a shard's records are often small."""


class TFRecordWriter:
    """Writes one TFRecord shard.

    The bytes go to a temporary file, and under the shard's name only on :meth:`close`: beside it
    and renamed for a local path, uploaded for a URL. An exception inside ``with`` discards them.

    Args:
        path: A local path, ``file://``, or a URL of any fsspec filesystem.
        compression: ``None``, ``"gzip"``, ``"zlib"``, ``"zstd"``, or ``"auto"``: what the path's
            suffix says (``.gz``, ``.zst``, ...). TensorFlow's names are taken too.
        storage_options: fsspec's, for a URL.

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
        self._target: _Target | None = None
        self.url = os.fspath(path)
        self._compressor = _compressor(compression, self.url)
        self.records = 0
        """Records written."""
        self.nbytes = 0
        """Bytes written, frames included, before they are compressed."""
        with _translated(self.url):
            self._target = _target(self.url, storage_options or {})

    def __repr__(self) -> str:
        state = "open" if self._target else "closed"
        return f"<TFRecordWriter {self.url}, {state}: {self.records} records, {self.nbytes} bytes>"

    def write(self, record: Record) -> None:
        """Append one record.

        Args:
            record: Bytes as they are, or a mapping, which :func:`encode_example` serializes.

        Raises:
            WrongFeatureType: A value of the mapping has no representation.
            TypeError: Neither bytes nor a mapping.
        """
        self._append(frame(_payload(record)), 1)

    def write_many(self, records: Iterable[Record] | BytesColumn | Mapping[str, Any]) -> None:
        """Append records.

        Args:
            records: One by one, as :meth:`write` takes them: if one is refused, those before it
                have been written. Faster, as a whole: a :class:`BytesColumn` of records; or a
                mapping of columns or a batch, which :func:`encode_examples` serializes.
        """
        if isinstance(records, Mapping):
            records = encode_examples(records)
        if isinstance(records, BytesColumn):
            frames = kernel.frame_records(RecordRows.from_column(records))
            self._append(frames.data, len(records.offsets) - 1)
            return
        for record in records:
            self.write(record)

    def flush(self) -> None:
        """Hand what is buffered to the operating system; the shard still does not appear."""
        file = self._open_target().file
        with _translated(self.url):
            if self._compressor is not None:
                file.write(self._compressor.flush())
            file.flush()

    def close(self) -> None:
        """Make the shard appear under its name; a second call does nothing.

        Raises:
            StoreError: It cannot be stored; what was written is discarded.
        """
        if self._target is None:
            return
        target, self._target = self._target, None
        try:
            with _translated(self.url):
                if self._compressor is not None:
                    target.file.write(self._compressor.finish())
                target.commit()
        finally:
            target.discard()

    def discard(self) -> None:
        """Forget what was written; the shard does not appear, one of before stays as it is."""
        if self._target is not None:
            target, self._target = self._target, None
            target.discard()

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

    def __del__(self) -> None:
        if getattr(self, "_target", None) is not None:
            self.discard()
            message = f"{self!r} was never closed: what was written is discarded"
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)

    def _open_target(self) -> _Target:
        if self._target is None:
            raise ValueError(f"{self!r} takes no more records")
        return self._target

    def _append(self, frames: Bytes, records: int) -> None:
        file = self._open_target().file
        with _translated(self.url):
            file.write(frames if self._compressor is None else self._compressor.compress(frames))
        self.records += records
        self.nbytes += len(frames)


def write_object(url: str, data: bytes, storage_options: Mapping[str, Any] | None = None) -> None:
    """Write one object: it appears whole, or not at all.

    Raises:
        ConfigError: The scheme is not known.
        ObjectNotFound: The directory does not exist.
        AccessDenied: It may not be written to.
        StoreError: It could not be written.
    """
    with _translated(url):
        target = _target(url, storage_options or {})
        try:
            target.file.write(data)
            target.commit()
        finally:
            target.discard()


def _compressor(name: str | None, url: str) -> Compressor | None:
    kind: Any = compression_name(name)
    if kind == "auto":
        kind = of_name(url)
    if kind not in get_args(Compression):
        known = ", ".join(map(repr, get_args(Compression)))
        raise ConfigError(f"there is no compression {name!r}; there are 'auto', {known}")
    return None if kind == "none" else Compressor(kind)


def _payload(record: Record) -> Bytes:
    if isinstance(record, bytes | bytearray):
        return record
    if isinstance(record, memoryview):
        return record.cast("B")
    if isinstance(record, Mapping):
        return encode_example(record)
    raise TypeError(f"a record is bytes or a mapping of features, not {type(record).__name__}")


@contextlib.contextmanager
def _translated(url: str) -> Iterator[None]:
    """Raise the operating system's errors as those of the store."""
    try:
        yield
    except FileNotFoundError as error:
        raise ObjectNotFound("no such directory or bucket; create it first", url=url) from error
    except PermissionError as error:
        raise AccessDenied("may not be written to", url=url) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(f"cannot be written: {reason}", url=url) from error


class _Target(Protocol):
    """Where a shard's bytes go until it is complete."""

    @property
    def file(self) -> IO[bytes]: ...

    def commit(self) -> None:
        """Make the shard appear."""

    def discard(self) -> None:
        """Remove what is left of it, after ``commit`` too."""


def _target(url: str, storage_options: Mapping[str, Any]) -> _Target:
    if "://" not in url:
        return _LocalTarget(Path(url))
    if url.startswith("file://"):
        return _LocalTarget(Path(unquote(urlsplit(url).path)))
    return _RemoteTarget(url, storage_options)


class _LocalTarget:
    """A hidden file in the same directory, so that renaming it is atomic and globs skip it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
        if path.is_dir():
            raise IsADirectoryError(None, "is a directory")
        self.file: IO[bytes] = self._part.open("xb", buffering=_BUFFER)

    def commit(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self._part.replace(self._path)
        _sync_directory(self._path.parent)

    def discard(self) -> None:
        # Closing flushes, and a full disk refuses that a second time; the file goes anyway.
        with contextlib.suppress(OSError):
            self.file.close()
        self._part.unlink(missing_ok=True)


def _sync_directory(path: Path) -> None:
    """Without it the new name may be lost in a power failure."""
    directory = os.open(path, os.O_RDONLY)
    # Some network filesystems refuse it; the shard is there all the same.
    with contextlib.suppress(OSError):
        os.fsync(directory)
    os.close(directory)


class _RemoteTarget:
    """A local temporary file that is uploaded as a whole.

    Filesystems differ in what they keep of an upload that breaks off; one that never began leaves
    nothing anywhere.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        self._upload = _uploader(url, storage_options)
        self.file = tempfile.NamedTemporaryFile(  # noqa: SIM115 - closed by commit or discard
            buffering=_BUFFER
        )

    def commit(self) -> None:
        self.file.flush()
        try:
            self._upload(self.file.name)
        except OSError:
            raise
        except Exception as error:  # each SDK has a tree of errors of its own
            raise OSError(f"{type(error).__name__}: {error}") from error

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self.file.close()


def _uploader(url: str, storage_options: Mapping[str, Any]) -> Callable[[str], object]:
    """What puts a local file in the place of the URL."""
    scheme, _, path = url.partition("://")
    if scheme.lower() in ("gs", "gcs"):
        from streamrec.stores import google

        return partial(google.put_file, google.filesystem(storage_options), path=path)
    import fsspec

    try:
        filesystem, path = fsspec.url_to_fs(url, **storage_options)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"{url}: {error}") from None
    return partial(filesystem.put_file, rpath=path)
