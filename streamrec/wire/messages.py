"""The messages of the feeder protocol, and their metadata as protobuf.

A message is a frozen dataclass; the same type is sent and received. Positions, fingerprints,
settings, counters and error fields are opaque bytes here (JSON, by convention of the layer above),
and so is the description of a batch: this module knows the form of messages, not their meaning.

The fields of a dataclass are the fields on the wire, numbered from 1 in their order. Adding one at
the end is compatible: an older peer ignores it. Anything else needs a new protocol version.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, TypeAlias

from streamrec.errors import LocalProtocolError, RemoteProtocolError
from streamrec.values.message_schema import Field, Messages, unreadable

Uint32: TypeAlias = int
"""A number of the wire, below 2^32."""
Uint64: TypeAlias = int
"""A number of the wire, below 2^64."""


class Kind(IntEnum):
    """The type of a frame."""

    HELLO = 1
    WELCOME = 2
    SUBSCRIBE = 3
    CREDIT = 4
    BATCH = 5
    PING = 6
    PONG = 7
    GOAWAY = 8
    END = 9
    FAULT = 10
    STATISTICS = 11
    SHARED = 12
    RELEASE = 13


class Message:
    """A message of the protocol: one of the classes below."""


@dataclass(frozen=True, kw_only=True)
class Hello(Message):
    """The client's first message: its token and versions, and the dataset that it asks for."""

    protocol_versions: tuple[Uint32, ...] = (3,)
    """All versions that the client speaks."""
    position_version: Uint32 = 1
    """The newest version of positions that the client reads."""
    token: str = field(default="", repr=False)
    dataset: str
    """The dataset's name at the feeder."""
    batch_size: Uint32 = 0
    """Records per rank and batch; 0: the dataset's own batch size."""
    world_size: Uint32
    """The number of ranks that read the dataset together."""
    replicas: bool = False
    """True: other clients read the same rank, and may share its reading."""


@dataclass(frozen=True)
class Welcome(Message):
    """The feeder's answer to HELLO: the stream that it serves."""

    protocol_version: Uint32
    """The version that both sides speak from here on, one of the client's."""
    fingerprint: bytes
    """The settings that determine the order; the client compares them before the first batch."""
    settings: bytes


@dataclass(frozen=True)
class Subscribe(Message):
    """The client's request for its rank's batches; sent again after END, for the next run."""

    rank: Uint32
    position: bytes = b""
    """The position to go on from; empty: the beginning."""


@dataclass(frozen=True)
class Credit(Message):
    """A grant by the client, which has room for more batches; grants add up."""

    amount: Uint64
    """Bytes of whole frames, from 1."""


@dataclass(frozen=True)
class BatchMessage(Message):
    """One batch."""

    metadata: bytes
    payload: tuple[memoryview, ...] = ()
    """Buffers of bytes, end to end. A received batch has one, aligned to 64 bytes in the receiver's
    own memory; none, if the payload is empty; or those that a :class:`Shared` names."""
    trailer: bytes | None = field(default=None, repr=False, compare=False)
    """The end of its frame, if it was computed ahead."""

    @property
    def payload_size(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.nbytes for buffer in self.payload)


@dataclass(frozen=True)
class Shared(Message):
    """One batch whose payload lies in memory that both ends share, in one block or several.

    A block holds whole arrays, each from the next multiple of 64 on.
    """

    metadata: bytes
    """The same as in a :class:`BatchMessage`."""
    offsets: tuple[Uint64, ...]
    """The byte of the shared memory at which each block begins."""
    sizes: tuple[Uint64, ...]
    """Bytes of each block, at least 1."""

    @property
    def size(self) -> int:
        """Bytes of all blocks, which are the batch's cost in credit."""
        return sum(self.sizes)


@dataclass(frozen=True)
class Release(Message):
    """The client's notice that it no longer uses these blocks of shared memory."""

    offsets: tuple[Uint64, ...]
    """The byte of the shared memory at which each block begins."""


@dataclass(frozen=True)
class Ping(Message):
    """A question of either side whether the other lives; the state machine answers it."""

    nonce: Uint64


@dataclass(frozen=True)
class Pong(Message):
    """The answer to the ping with the same nonce."""

    nonce: Uint64


@dataclass(frozen=True)
class Goaway(Message):
    """The feeder's last message when it shuts down; the client may go on at another feeder."""

    text: str


@dataclass(frozen=True)
class End(Message):
    """The end of a run; the client may subscribe again."""

    position: bytes
    """The position after the run."""


@dataclass(frozen=True)
class Fault(Message):
    """The feeder's last message when it cannot go on."""

    fields: bytes
    """The error's fields."""
    retryable: bool


@dataclass(frozen=True)
class Statistics(Message):
    """The feeder's counters of this run so far; each message replaces the one before."""

    counters: bytes


_TYPES: dict[Kind, type[Any]] = {
    Kind[type_.__name__.removesuffix("Message").upper()]: type_
    for type_ in Message.__subclasses__()
}
_KINDS = {kind: number for number, kind in _TYPES.items()}


def _wire_fields(type_: type[Any]) -> list[Field]:
    """Return the protobuf fields of a message: those of the class, numbered from 1 in order."""
    return [
        Field(_wire_type(str(f.type)), f.name, number) for number, f in enumerate(fields(type_), 1)
    ]


def _wire_type(annotation: str) -> str:
    """Return the protobuf type that stands for ``Uint64``, ``str`` or ``tuple[Uint64, ...]``."""
    scalar = annotation.removeprefix("tuple[").removesuffix(", ...]")
    name = "string" if scalar == "str" else scalar.lower()
    return name if scalar == annotation else f"repeated {name}"


_TABLE = {
    type_.__name__: _wire_fields(type_) for type_ in _TYPES.values() if type_ is not BatchMessage
}
_PROTO = Messages("streamrec.wire", _TABLE)


def kind_of(message: Message) -> Kind:
    """Return the frame type that carries the message."""
    return _KINDS[type(message)]


def encode(message: Message) -> bytes:
    """Encode the message's metadata.

    Raises:
        LocalProtocolError: The value of a field does not fit the field's type.
    """
    if isinstance(message, BatchMessage):
        return message.metadata
    name = type(message).__name__
    try:
        proto = _PROTO[name](**{field.name: getattr(message, field.name) for field in _TABLE[name]})
        # The same bytes for the same message.
        return bytes(proto.SerializeToString(deterministic=True))
    except (ValueError, TypeError) as error:
        raise LocalProtocolError(f"{name.upper()} cannot be sent: {error}") from None


def decode(kind: Kind, metadata: bytes, payload: tuple[memoryview, ...] = ()) -> Message:
    """Decode the message of a frame.

    Raises:
        RemoteProtocolError: The metadata is not a message of this kind.
    """
    if kind is Kind.BATCH:
        # Its metadata are not of this protocol: the layer above reads them.
        return BatchMessage(metadata, payload)
    type_ = _TYPES[kind]
    try:
        proto = _PROTO[type_.__name__].FromString(metadata)
    except unreadable():
        raise RemoteProtocolError(
            f"the metadata of {kind.name} does not decode; install the same streamrec on both sides"
        ) from None
    values = {field.name: _plain(proto, field) for field in _TABLE[type_.__name__]}
    message: Message = type_(**values)
    return message


def _plain(proto: Any, field: Field) -> Any:
    value = getattr(proto, field.name)
    return tuple(value) if field.type.startswith("repeated ") else value
