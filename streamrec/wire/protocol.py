"""The state machine of the feeder protocol, for both ends.

::

             HELLO            WELCOME          SUBSCRIBE
    OPENING ──────▶ GREETING ────────▶ READY ───────────▶ STREAMING ⟲ BATCH, SHARED, STATISTICS
       c               s                 ▲        c           │          s
                                         └────────────────────┘
                                                  END  s

    any but OPENING ── GOAWAY or FAULT (s) ──▶ FINISHED        any ── end of the bytes ──▶ CLOSED

    c: the client sends it, s: the feeder.  CREDIT and RELEASE (c) are allowed in READY and
    STREAMING, PING and PONG (both) in GREETING, READY and STREAMING.

The last message that an end sent or received determines its state. A feeder in FINISHED receives
and drops what the client sent before it knew. A feeder whose client broke the protocol may still
send FAULT, and nothing else.

This module does no I/O. Its user puts bytes into :meth:`Connection.get_buffer`, reports how many to
:meth:`Connection.buffer_updated`, acts on :meth:`Connection.events` and writes the buffers that
:meth:`Connection.send` and :meth:`Connection.replies` return, whole and in order.

Credit counts whole frames of BATCH in bytes, and the payloads of SHARED, on both sides alike. The
feeder may send a batch while the credit is positive, so one batch may overdraw it: even a batch
larger than all grants can be sent. Everything on a connection is bounded: the client's memory by
the credit, waiting answers to pings by ``MOST_REPLIES``, all else by the states.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from streamrec.errors import LocalProtocolError, RemoteProtocolError
from streamrec.wire import messages
from streamrec.wire.frame import Frame, FrameReader, Header, check_sizes, trailer
from streamrec.wire.messages import BatchMessage, Credit, Kind, Message, Ping, Pong, Shared

if TYPE_CHECKING:
    from collections.abc import Iterator

PROTOCOL_VERSIONS = (3,)
MOST_CREDIT = (1 << 63) - 1
MOST_REPLIES = 64
"""Answers to pings that may wait to be written."""


class Role(Enum):
    """One of the two ends of a connection."""

    CLIENT = "client"
    SERVER = "feeder"

    @property
    def peer(self) -> Role:
        """The other end."""
        return Role.SERVER if self is Role.CLIENT else Role.CLIENT


class State(Enum):
    """The state of a connection, the same at both ends."""

    OPENING = "opening"
    GREETING = "greeting"
    READY = "ready"
    STREAMING = "streaming"
    FINISHED = "finished"
    CLOSED = "closed"


_GREETED = (State.GREETING, State.READY, State.STREAMING)
_SUBSCRIBABLE = (State.READY, State.STREAMING)

# Who may send what, in which states, and where it leads (None: the state stays).
_RULES: dict[Kind, tuple[tuple[Role, ...], tuple[State, ...], State | None]] = {
    Kind.HELLO: ((Role.CLIENT,), (State.OPENING,), State.GREETING),
    Kind.WELCOME: ((Role.SERVER,), (State.GREETING,), State.READY),
    Kind.SUBSCRIBE: ((Role.CLIENT,), (State.READY,), State.STREAMING),
    Kind.CREDIT: ((Role.CLIENT,), _SUBSCRIBABLE, None),
    Kind.BATCH: ((Role.SERVER,), (State.STREAMING,), None),
    Kind.SHARED: ((Role.SERVER,), (State.STREAMING,), None),
    Kind.RELEASE: ((Role.CLIENT,), _SUBSCRIBABLE, None),
    Kind.STATISTICS: ((Role.SERVER,), (State.STREAMING,), None),
    Kind.END: ((Role.SERVER,), (State.STREAMING,), State.READY),
    Kind.PING: ((Role.CLIENT, Role.SERVER), _GREETED, None),
    Kind.PONG: ((Role.CLIENT, Role.SERVER), _GREETED, None),
    Kind.GOAWAY: ((Role.SERVER,), _GREETED, State.FINISHED),
    Kind.FAULT: ((Role.SERVER,), _GREETED, State.FINISHED),
}

_COSTLY = (Kind.BATCH, Kind.SHARED)


class Connection:
    """One end of a connection to a feeder.

    Args:
        role: This end.
    """

    def __init__(self, role: Role) -> None:
        self.role = role
        self.state = State.OPENING
        self.credit = 0
        """Bytes of batches that the feeder may still send; at most one batch below 0."""
        self.error: RemoteProtocolError | None = None
        """The peer's breach of the protocol; after one, nothing is received."""
        self._reader = FrameReader(self._admit)
        self._events: deque[Message] = deque()
        self._replies: list[memoryview] = []
        self._pings: set[int] = set()

    def __repr__(self) -> str:
        dead = ", dead" if self.error else ""
        return f"<Connection {self.role.value} {self.state.value}, credit {self.credit}{dead}>"

    @property
    def over(self) -> bool:
        """``True`` once the conversation has ended, in whatever way: nothing more is to be sent."""
        return self.error is not None or self.state in (State.FINISHED, State.CLOSED)

    # Sending

    def send(self, message: Message) -> list[memoryview]:
        """Return the buffers to write for a message; the payload of a batch is not copied.

        Raises:
            LocalProtocolError: The state does not allow it, or the message cannot be encoded.
        """
        kind = messages.kind_of(message)
        self._check_sendable(kind, message)
        metadata = messages.encode(message)
        batch = message if isinstance(message, BatchMessage) else None
        payload = batch.payload if batch else ()
        header = Header(kind, len(metadata), sum(buffer.nbytes for buffer in payload))
        _check_own_sizes(header)
        self._apply(kind, message, header)
        if isinstance(message, Ping):
            self._pings.add(message.nonce)
        return [
            *self.replies(),
            *_frame(header, metadata, payload, batch.trailer if batch else None),
        ]

    def replies(self) -> list[memoryview]:
        """Return the waiting answers to pings as buffers to write; :meth:`send` includes them."""
        replies, self._replies = self._replies, []
        return replies

    def _check_sendable(self, kind: Kind, message: Message) -> None:
        roles, states, _ = _RULES[kind]
        # A client that broke the protocol is told why, by FAULT alone.
        excuse = kind is Kind.FAULT and self.state not in (State.FINISHED, State.CLOSED)
        allowed = excuse if self.error else self.state in states
        if self.role not in roles or not allowed:
            raise LocalProtocolError(f"a {self.role.value} cannot send {kind.name} now: {self!r}")
        # Any credit is enough, whatever the size: a batch larger than all grants can be sent, too.
        if kind in _COSTLY and self.credit <= 0:
            raise LocalProtocolError("the client has no credit left for a batch; wait for CREDIT")
        if isinstance(message, Ping) and message.nonce in self._pings:
            raise LocalProtocolError(
                f"ping {message.nonce} is not answered yet; send one with another nonce"
            )
        if isinstance(message, Pong):
            raise LocalProtocolError("PONG cannot be sent: the connection answers pings by itself")

    # Receiving

    @property
    def exact(self) -> bool:
        """``True`` while exactly ``len(get_buffer())`` more bytes will come: wait for all."""
        return self._reader.exact

    def get_buffer(self) -> memoryview:
        """Return the memory for the next received bytes, valid until :meth:`buffer_updated`.

        Raises:
            RemoteProtocolError: The peer broke the protocol before.
            LocalProtocolError: The connection was closed before.
        """
        if self.error:
            raise self.error
        if self.state is State.CLOSED:
            raise LocalProtocolError("nothing can be received: the connection is closed")
        return self._reader.get_buffer()

    def buffer_updated(self, count: int) -> None:
        """Process ``count`` bytes that were written to the start of :meth:`get_buffer`."""
        self._reader.buffer_updated(count)
        try:
            for frame in self._reader.frames():
                self._receive(frame)
        except RemoteProtocolError as error:
            self.error = error

    def receive_eof(self) -> None:
        """Process the end of the peer's bytes.

        Raises:
            RemoteProtocolError: The bytes end inside a frame.
        """
        if self.state is State.CLOSED:
            return
        self.state = State.CLOSED
        if self._reader.inside and not self.error:
            raise RemoteProtocolError(
                f"the connection ended inside {self._reader.inside}; connect again"
            )

    def events(self) -> Iterator[Message]:
        """Yield the messages received since the last call, in order.

        Raises:
            RemoteProtocolError: After the last intact message, if the peer broke the protocol.
        """
        while self._events:
            yield self._events.popleft()
        if self.error:
            raise self.error

    def _admit(self, header: Header) -> None:
        """Check a header against role, state and credit, before memory is allocated."""
        roles, states, _ = _RULES[header.kind]
        # The client may not know of the end yet: what it has sent before is read, and dropped.
        late = self.role is Role.SERVER and self.state is State.FINISHED
        if self.role.peer not in roles or (self.state not in states and not late):
            raise RemoteProtocolError(
                f"{header.kind.name} from the {self.role.peer.value} is out of place: {self!r}; "
                "install the same streamrec on both sides"
            )
        check_sizes(header)
        if header.kind in _COSTLY and self.credit <= 0:
            raise RemoteProtocolError(
                f"{header.kind.name} came without credit; install the same streamrec on both sides"
            )

    def _receive(self, frame: Frame) -> None:
        message = messages.decode(frame.header.kind, frame.metadata, frame.payload)
        if self.state is State.FINISHED:
            return
        if isinstance(message, Ping):
            self._answer(message)
        elif isinstance(message, Pong):
            self._note_answer(message)
        self._apply(frame.header.kind, message, frame.header)
        self._events.append(message)

    def _answer(self, ping: Ping) -> None:
        if len(self._replies) >= MOST_REPLIES:
            raise RemoteProtocolError(
                f"the peer sends pings and does not read the answers: {MOST_REPLIES} of them wait"
            )
        metadata = messages.encode(Pong(ping.nonce))
        # Not written here, as nothing is: the user of this machine writes it, in order.
        self._replies += _frame(Header(Kind.PONG, len(metadata), 0), metadata)

    def _note_answer(self, pong: Pong) -> None:
        if pong.nonce not in self._pings:
            raise RemoteProtocolError(
                f"PONG {pong.nonce} answers no PING; install the same streamrec on both sides"
            )
        self._pings.remove(pong.nonce)

    # Both ways

    def _apply(self, kind: Kind, message: Message, header: Header) -> None:
        """Change credit and state in the same way for sent and received messages."""
        if isinstance(message, Credit):
            self._grant(message)
        elif kind is Kind.BATCH:
            self.credit -= header.size
        elif isinstance(message, Shared):
            self.credit -= message.size
        self.state = _RULES[kind][2] or self.state

    def _grant(self, credit: Credit) -> None:
        if not 0 < credit.amount <= MOST_CREDIT - self.credit:
            error = LocalProtocolError if self.role is Role.CLIENT else RemoteProtocolError
            raise error(
                f"a credit of {credit.amount} bytes on top of {self.credit} is out of range; grant "
                f"1 byte or more, and no more than {MOST_CREDIT} bytes in all"
            )
        self.credit += credit.amount


def seal(message: BatchMessage) -> BatchMessage:
    """Return a batch with the end of its frame, which takes a look at all its bytes."""
    return replace(message, trailer=trailer(message.metadata, message.payload))


def _frame(
    header: Header, metadata: bytes, payload: tuple[memoryview, ...] = (), end: bytes | None = None
) -> list[memoryview]:
    head = b"".join((header.pack(), metadata, bytes(header.padding)))
    end = trailer(metadata, payload) if end is None else end
    # A small message is one buffer: fewer parts to write.
    if not header.payload_size:
        return [memoryview(head + end)]
    return [memoryview(head), *payload, memoryview(end)]


def _check_own_sizes(header: Header) -> None:
    try:
        check_sizes(header)
    except RemoteProtocolError as error:
        raise LocalProtocolError(f"a message is too large to send: {error.message}") from None
