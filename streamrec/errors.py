"""Every error that streamrec raises on purpose.

::

    StreamrecError
    ├── ConfigError (ValueError)              a setting is wrong, or two contradict each other
    ├── StoreError                            the object store: url, offset
    │   ├── ObjectNotFound (FileNotFoundError)
    │   ├── AccessDenied (PermissionError)
    │   ├── ObjectChanged                     another version than the one that was pinned
    │   ├── StaleIndex                        the index describes another version of this shard
    │   ├── StoreMisbehaved                   an answer that breaks HTTP's or the store's own rules
    │   └── StoreUnavailable (ConnectionError)    retryable: network, 429, 5xx
    ├── DataError (ValueError)                the bytes: url, offset, record, feature
    │   ├── TruncatedShard
    │   ├── CorruptLength                     the CRC of a record's length
    │   ├── CorruptRecord                     the CRC of a record's payload
    │   ├── CorruptBudgetExceeded             more was skipped than allowed: skipped_records, _bytes
    │   ├── CorruptCompression                no intact gzip, zlib or zstd stream
    │   ├── DecompressionBomb                 far more comes out than went in
    │   ├── RecordTooLarge                    a record is longer than max_record_bytes
    │   ├── MalformedExample                  not the protobuf message it should be
    │   ├── MalformedImage                    not a picture that can be decoded
    │   │   └── PictureTooLarge               beyond max_pixels or max_bytes, or of too many scans
    │   ├── BatchTooLarge                     the columns of a batch take more than max_bytes
    │   ├── MalformedIndex                    not an index, or a damaged one
    │   ├── MalformedAudit                    not an object of an audit log, or a damaged one
    │   ├── UnsupportedFormat                 legal, but of a form that is not read
    │   ├── MissingFeature
    │   └── WrongFeatureType                  another kind, dtype or number of values than asked for
    ├── AuditFailed                           the audit log cannot be written: url
    ├── FunctionFailed                        a function of the user: setting, url, record
    ├── OutOfMemory (MemoryError)             the system gives none: url, offset, record
    ├── WireError                             the feeder protocol
    │   ├── LocalProtocolError                our side did what the state does not allow
    │   └── RemoteProtocolError               the peer did
    │       └── CorruptFrame                  retryable: bytes changed on the way
    ├── FeedError                             a feeder or the engine process: position
    │   ├── FeederLost (ConnectionError)      retryable: the connection broke
    │   ├── FeederDraining                    retryable: it asked us to go elsewhere
    │   └── FeederRefused                     unknown dataset, wrong token, unsupported version
    ├── Stalled (TimeoutError)                a stage, or a feeder, stands still: stage, position
    ├── BatchOutOfOrder                       not the batch that is due came: step
    ├── Busy (RuntimeError)                   two threads or tasks take from one stream at once
    └── StateError (ValueError)               a position that does not fit
        ├── MalformedPosition
        ├── OtherDataset                      saved from other shards
        ├── OtherOrder                        saved with other settings: the message names them
        └── OtherVersion                      saved by another streamrec

Fields, not text, carry the facts; ``retryable`` says whether the same call may succeed later. An
error crosses a process or the network as the mapping of ``to_fields``.

Messages and URLs are masked when the error is made: they hold no credentials, nothing that steers a
terminal, and some KB at most, wherever their text came from.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

from streamrec.masking import masked, printable, say_where

__all__ = [
    "AccessDenied",
    "AuditFailed",
    "BatchOutOfOrder",
    "BatchTooLarge",
    "Busy",
    "ConfigError",
    "CorruptBudgetExceeded",
    "CorruptCompression",
    "CorruptFrame",
    "CorruptLength",
    "CorruptRecord",
    "DataError",
    "DecompressionBomb",
    "FeedError",
    "FeederDraining",
    "FeederLost",
    "FeederRefused",
    "FunctionFailed",
    "LocalProtocolError",
    "MalformedAudit",
    "MalformedExample",
    "MalformedImage",
    "MalformedIndex",
    "MalformedPosition",
    "MissingFeature",
    "ObjectChanged",
    "ObjectNotFound",
    "OtherDataset",
    "OtherOrder",
    "OtherVersion",
    "OutOfMemory",
    "PictureTooLarge",
    "RecordTooLarge",
    "RemoteProtocolError",
    "StaleIndex",
    "Stalled",
    "StateError",
    "StoreError",
    "StoreMisbehaved",
    "StoreUnavailable",
    "StreamrecError",
    "TruncatedShard",
    "UnsupportedFormat",
    "WireError",
    "WrongFeatureType",
]


@dataclass(eq=False, repr=False)
class StreamrecError(Exception):
    """The root of the tree.

    Args:
        message: What happened and what to do next; the location is added from the fields.
    """

    retryable: ClassVar[bool] = False
    message: str = field(repr=False)  # without repr it is not among the facts: see field_names()

    def __post_init__(self) -> None:
        self.message = printable(self.message)
        super().__init__(self.message)
        # Not by attribute, since not every kind of error has a URL.
        own = vars(self)
        if own.get("url") is not None:
            own["url"] = printable(masked(own["url"]))

    def __str__(self) -> str:
        return printable(say_where(self.message, self._told_fields()))

    def _told_fields(self) -> dict[str, Any]:
        """Return the fields that the error's text names."""
        # A position is long, and a code is for programs.
        silent = ("position", "code")
        return {name: value for name, value in self.fields().items() if name not in silent}

    def fields(self) -> dict[str, Any]:
        """Return the known fields by name."""
        values = ((name, getattr(self, name)) for name in field_names(type(self)))
        return {name: value for name, value in values if value is not None}


class ConfigError(StreamrecError, ValueError):
    """A setting is wrong, or two settings contradict each other."""


@dataclass(eq=False, repr=False, kw_only=True)
class StoreError(StreamrecError):
    """The object store refused or failed.

    Args:
        message: What happened and what to do next.
        url: The object or bucket.
        offset: The first byte of the stored object that could not be read.
    """

    url: str | None = None
    offset: int | None = None

    def _told_fields(self) -> dict[str, Any]:
        # At byte 0 no byte could be read, as of a missing object.
        return {k: v for k, v in super()._told_fields().items() if (k, v) != ("offset", 0)}

    def at(self, offset: int) -> Self:
        """Return a copy, without traceback and cause, that says at which byte reading failed."""
        # A copy, since several reads may share one error, such as that of a token.
        error = copy(self)
        error.offset = offset
        return error

    def about(self, url: str) -> Self:
        """Return a copy, without traceback and cause, that names another URL."""
        error = copy(self)
        # A copy is made without __post_init__, which masks.
        error.url = printable(masked(url))
        return error


class ObjectNotFound(StoreError, FileNotFoundError):
    """There is no such object, bucket or file, or a pattern matches none."""


class AccessDenied(StoreError, PermissionError):
    """The store knows the request and does not allow it."""


class ObjectChanged(StoreError):
    """The object is no longer the version that this run pinned."""


class StaleIndex(StoreError):
    """The index describes another content of this shard than the store has now."""


class StoreMisbehaved(StoreError):
    """The store's answer contradicts the request or itself."""


@dataclass(eq=False, repr=False, kw_only=True)
class StoreUnavailable(StoreError, ConnectionError):
    """The store cannot be reached, or asks to slow down.

    Args:
        message: What happened and what to do next.
        url: The object or bucket.
        offset: The first byte of the stored object that could not be read.
        retry_after: Seconds that the store asks to wait; ``None`` where it names none.
        throttled: True where the store asks to slow down.
    """

    retryable = True

    retry_after: float | None = field(default=None, repr=False)
    throttled: bool = field(default=False, repr=False)


@dataclass(eq=False, repr=False, kw_only=True)
class DataError(StreamrecError, ValueError):
    """The bytes are not what they should be.

    Args:
        message: What is wrong and what to do next.
        url: The shard.
        offset: The byte of the shard at which the record's frame begins.
        record: The record's number in the shard, or the row's number in the input, from 0.
        feature: The feature's name.
    """

    url: str | None = None
    offset: int | None = None
    record: int | None = None
    feature: str | None = None


class TruncatedShard(DataError):
    """The shard ends inside a record."""


class CorruptLength(DataError):
    """A record's length does not match its CRC."""


class CorruptRecord(DataError):
    """A record's payload does not match its CRC."""


@dataclass(eq=False, repr=False, kw_only=True)
class CorruptBudgetExceeded(DataError):
    """More records are damaged than ``corrupt_budget`` allows to skip.

    Args:
        message: What happened and what to do next.
        url: The shard of the last damaged record.
        offset: The byte of the shard at which that record begins.
        record: That record's number in the shard.
        feature: Not used.
        skipped_records: The number of skipped records, with the last one.
        skipped_bytes: The size of the skipped records in bytes.
    """

    skipped_records: int | None = None
    skipped_bytes: int | None = None


class CorruptCompression(DataError):
    """The compressed stream is not intact; ``offset`` counts bytes of the stored object."""


class DecompressionBomb(DataError):
    """The shard decompresses to more than is allowed; ``offset`` counts bytes of the object."""


class RecordTooLarge(DataError):
    """The record is longer than ``max_record_bytes``; no memory was taken for it.

    ``streamrec write`` raises it for what a source claims beyond ``--memory``.
    """


class MalformedExample(DataError):
    """The record is not the protobuf message that it should be."""


class MalformedImage(DataError):
    """The picture is corrupt, truncated or too large, or the bytes are not a picture."""


class PictureTooLarge(MalformedImage):
    """The picture claims more pixels, memory or scans than the limits allow; it may be intact.

    Nothing was taken for its pixels. ``on_corrupt`` never skips it: which records there are must
    not follow from how much memory there is.
    """


class BatchTooLarge(DataError):
    """The columns of a batch would take more memory than ``max_bytes``; none was taken for them.

    ``record`` is the one that claims most.
    """


class MalformedIndex(DataError):
    """The bytes are not those of an index that this version reads."""


class MalformedAudit(DataError):
    """The object is not one of an audit log, or is damaged."""


class UnsupportedFormat(DataError):
    """The data follow a standard, but in a form that streamrec does not read."""


class MissingFeature(DataError):
    """The record lacks a feature that has no default."""


class WrongFeatureType(DataError):
    """The feature holds another kind or number of values than the spec says."""


@dataclass(eq=False, repr=False, kw_only=True)
class AuditFailed(StreamrecError):
    """The audit log cannot be written, so the stream delivers nothing more.

    Args:
        message: What happened and what to do next.
        url: The object of the log.
    """

    url: str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class FunctionFailed(StreamrecError):
    """A function of the user raised, or returned a wrong value; the cause is chained.

    Args:
        message: What the function did and what to do next.
        setting: The setting that names the function: ``"filter"``, ``"map"``, ``"transform"``.
        url: The shard of the first record that the function was called with.
        record: That record's number in its shard, from 0.
    """

    setting: str | None = None
    url: str | None = None
    record: int | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class OutOfMemory(StreamrecError, MemoryError):
    """The operating system gives no memory to read with.

    Args:
        message: What the memory was for and what to do next.
        url: The shard that was being read.
        offset: The byte of the shard up to which it was read.
        record: The number in the shard, from 0, of the record (or the first of the records) that
            needed the memory.
    """

    url: str | None = None
    offset: int | None = None
    record: int | None = None

    @classmethod
    def of(
        cls,
        error: MemoryError,
        *,
        url: str | None,
        offset: int | None = None,
        record: int | None = None,
    ) -> Self:
        """Make the error for a failed allocation."""
        # The traceback's frames hold memory that is needed now.
        error.__traceback__ = None
        return cls(
            f"the system gives no memory ({error}); give the process more, or lower memory_budget "
            "or max_record_bytes",
            url=url,
            offset=offset,
            record=record,
        )


class WireError(StreamrecError):
    """The feeder protocol was broken."""


class LocalProtocolError(WireError):
    """This side tried what the protocol's state does not allow."""


class RemoteProtocolError(WireError):
    """The peer sent what the protocol does not allow."""


class CorruptFrame(RemoteProtocolError):
    """Bytes of a frame changed on the way, as its checksum tells."""

    retryable = True


@dataclass(eq=False, repr=False, kw_only=True)
class FeedError(StreamrecError):
    """A feeder, or the engine process, no longer delivers.

    Args:
        message: What happened and what to do next.
        position: The state to resume from, as plain JSON-able data: that of the last batch taken,
            or the state that was loaded. ``None``: there is neither, so begin anew.
        code: A word that says for programs why a client is refused; the documentation's page about
            the feeder has them all. ``None``: for another reason.
    """

    position: dict[str, Any] | None = None
    code: str | None = None


class FeederLost(FeedError, ConnectionError):
    """The connection to the feeder broke."""

    retryable = True


class FeederDraining(FeedError):
    """The feeder shuts down and asks its clients to go elsewhere."""

    retryable = True


class FeederRefused(FeedError):
    """The feeder does not serve this client or this dataset."""


@dataclass(eq=False, repr=False, kw_only=True)
class Stalled(StreamrecError, TimeoutError):
    """A stage stood still for ``stall_timeout``; for a stalled store it is `StoreUnavailable`.

    Args:
        message: What happened and what to do next.
        stage: The stage's name, such as ``decode``; ``feeder`` where a feeder sends no batches.
        position: The state to resume from, of a feeder's stream, as in `FeedError`.
    """

    stage: str | None = None
    position: dict[str, Any] | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class BatchOutOfOrder(StreamrecError):
    """A batch came that does not follow the last one, so the stream delivers nothing.

    Args:
        message: What happened and what to do next.
        step: The number of the step that came, from 0.
    """

    step: int | None = None


class Busy(StreamrecError, RuntimeError):
    """Two threads, or two tasks, take from one stream at the same time."""


class StateError(StreamrecError, ValueError):
    """A position does not fit where it is used."""


class MalformedPosition(StateError):
    """The state is not one that streamrec ever saved."""


class OtherDataset(StateError):
    """The state was saved from other shards."""


class OtherOrder(StateError):
    """The state was saved with other settings that determine the order."""


class OtherVersion(StateError):
    """The state was saved by another version of streamrec, of another form or order."""


def field_names(kind: type[StreamrecError]) -> list[str]:
    """Return the names of the facts that an error of this kind tells."""
    # An attribute without ``repr`` is for the code that catches the error, and crosses no process.
    return [fact.name for fact in fields(kind) if fact.repr]
