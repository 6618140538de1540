"""The state of a feed, without I/O: shared by both kinds of feed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from streamrec.errors import (
    FeederDraining,
    FeedError,
    RemoteProtocolError,
    Stalled,
    StateError,
    StreamrecError,
)
from streamrec.feeder.client.shared import SHARED_CREDITS
from streamrec.feeder.client.welcome import mapping_of, read_welcome
from streamrec.flow.channel import EndOfStream
from streamrec.pipeline.batch import payload
from streamrec.plan.state.position import VERSION, Position
from streamrec.plan.state.resume_point import Beginning, read_resume_point
from streamrec.wire.error_fields import from_fields
from streamrec.wire.frame import frame_size
from streamrec.wire.messages import (
    BatchMessage,
    Credit,
    End,
    Fault,
    Goaway,
    Hello,
    Message,
    Release,
    Shared,
    Statistics,
    Subscribe,
    Welcome,
)
from streamrec.wire.protocol import PROTOCOL_VERSIONS

if TYPE_CHECKING:
    from streamrec.feeder.client.shared import Inbox
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.plan.state.fingerprint import Fingerprint

CREDIT_BYTES = 64 << 20

State = Mapping[str, Any] | Position | Beginning
"""A place in the stream: as an object, or as the plain data of its ``to_dict``."""


class StreamPart(TypedDict, total=False):
    """The part of a stream that a feed receives, and the place to go on at."""

    rank: int
    """The part of the stream to read, from 0; 0 by default."""
    world_size: int
    """The number of parts; 1 by default."""
    batch_size: int | None
    """Records per rank and batch; ``None``: the dataset's own."""
    position: State | None
    """The place to go on at; ``None``: the beginning."""
    replicas: bool
    """True: other clients read the same rank, and the feeder reads once for all of them."""


class Options(StreamPart, total=False):
    """The options of a feed."""

    token: str | None
    """The secret that the feeder asks for; never sent over plain TCP beyond this machine."""
    fingerprint: Fingerprint | None
    """The fingerprint that the feeder must serve; ``None``: any."""
    credit_bytes: int
    """Bytes of batches that may wait on this side."""
    shared_bytes: int
    """Bytes of memory to share with a feeder on this machine; four times the credit by default."""


NEAR = Options(credit_bytes=16 << 20, shared_bytes=SHARED_CREDITS * CREDIT_BYTES)
"""Options for a feeder on this machine, where no more need be on its way: what is written to the
same places again and again is in a cache, and images took a fifth less of the feeder's CPU time.
Batches of any size that fit have places to lie in."""


class FeedState:
    """The state of a feed: its place in a rank's stream, and what it owes in credit.

    Args:
        dataset: The name under which the feeder serves it.
        options: Those that differ from the defaults.
    """

    def __init__(self, dataset: str, **options: Unpack[Options]) -> None:
        rank, world_size = options.get("rank", 0), options.get("world_size", 1)
        batch_size = options.get("batch_size")
        credit_bytes = options.get("credit_bytes", CREDIT_BYTES)
        self._place = options.get("position")
        self._fingerprint: Fingerprint | None = None
        self.settings: dict[str, Any] = {}
        """Facts of the dataset, from the feeder: batch_size, lanes, shards, features."""
        self._counters: dict[str, Any] = {}
        self.received = 0
        """Bytes of batches that came over this connection, as frames."""
        self.over = False
        """True once the run has ended, until another is started."""
        self._rank = rank
        self._expected = options.get("fingerprint")
        # All of it is owed at first: the request of the first run grants it.
        self._credit_bytes = self._owed = credit_bytes
        self.shared_bytes = options.get("shared_bytes", SHARED_CREDITS * credit_bytes)
        self.inbox: Inbox | None = None
        """The memory that the feeder shares, if it does."""
        self.hello = Hello(
            dataset=dataset,
            world_size=world_size,
            batch_size=batch_size or 0,
            position_version=VERSION,
            protocol_versions=PROTOCOL_VERSIONS,
            token=options.get("token") or "",
            replicas=options.get("replicas", False),
        )

    @property
    def fingerprint(self) -> Fingerprint:
        """Everything that determines the order of what is received."""
        assert self._fingerprint is not None  # the machine lets nothing come before WELCOME
        return self._fingerprint

    @property
    def position(self) -> dict[str, Any] | None:
        """The state after the last batch taken, or to begin with; ``None``: the very beginning."""
        return state_of(self._place)

    def statistics(self) -> dict[str, Any]:
        """Return the feeder's counters of this run: told with a batch, every tenth of a second."""
        return self._counters

    def welcome(self, message: Message) -> None:
        """Compare what the feeder serves with what is wanted, and remember it.

        Raises:
            StreamrecError: The feeder refuses, with its own reason.
            OtherDataset: It serves other shards.
            OtherOrder: It serves them in another order.
            RemoteProtocolError: The answer cannot be read.
        """
        if not isinstance(message, Welcome):
            raise self._refusal(message)
        if message.protocol_version not in PROTOCOL_VERSIONS:
            raise RemoteProtocolError(f"the feeder chose version {message.protocol_version}")
        self._fingerprint, self.settings = read_welcome(
            message.fingerprint, message.settings, self.hello.world_size
        )
        if self._expected is not None:
            own = replace(self._fingerprint, mix_changes=self._expected.mix_changes)
            own.check(self._expected, "the expected fingerprint")
        self._take_changes()

    def _take_changes(self) -> None:
        """Take the changes of weights from the place to begin at: the feeder takes them, too."""
        position = self.position
        if position is None or self._fingerprint is None:
            return
        start = read_resume_point(position)
        self._fingerprint = replace(self._fingerprint, mix_changes=start.mix_changes)
        # Whether components have joined a mix since, only the feeder can tell.
        if isinstance(start, Position) and self._fingerprint.mix == start.fingerprint.mix:
            self._fingerprint.check(start.fingerprint)

    def request(self) -> list[Message]:
        """Return the messages that start a run at the present position."""
        self.over = False
        position = self.position
        data = b"" if position is None else json.dumps(position).encode()
        return [Subscribe(self._rank, data), *self.due()]

    def seek(self, position: State | None) -> None:
        """Change where the next run begins; ``None``: not at all."""
        self._place = self._place if position is None else position
        self._take_changes()

    def note(self, message: Message) -> bool:
        """Keep counters; return False for any other message, which is one of the stream.

        Raises:
            RemoteProtocolError: The message cannot be read.
        """
        if not isinstance(message, Statistics):
            return False
        self._counters = mapping_of(message.counters, "STATISTICS")
        return True

    def take(self, message: Message) -> Batch:
        """Return the batch that a message brings.

        Raises:
            EndOfStream: The run is over; the position is that of the next.
            FeederDraining: The feeder shuts down.
            StreamrecError: The feeder's own error.
            RemoteProtocolError: The batch cannot be read.
        """
        if isinstance(message, BatchMessage):
            # As the feeder counts it: the whole frame, or the payload of SHARED.
            size = frame_size(len(message.metadata), message.payload_size)
            self._owed += size
            self.received += size
            return self._batch(message)
        if isinstance(message, Shared):
            self._owed += message.size
            self.received += message.size
            return self._batch(self._find_shared(message))
        if isinstance(message, End):
            self._place = self._end(message)
            self.over = True
            raise EndOfStream
        raise self._refusal(message)

    def _end(self, message: End) -> Position:
        try:
            position = Position.from_dict(mapping_of(message.position, "the position of END"))
        except StateError as error:
            raise RemoteProtocolError(f"the position of END cannot be read: {error}") from None
        ours = self.fingerprint, self._rank, self.hello.world_size
        # A run that went on at another rank's position would repeat records, and lose others.
        if (position.fingerprint, position.rank, position.world_size) != ours:
            raise RemoteProtocolError("the position of END is of another stream, or another rank")
        return position

    def _batch(self, message: BatchMessage) -> Batch:
        batch = payload.decode(message, self.fingerprint, self._rank, self.hello.world_size)
        self._place = batch.next_position
        return batch

    def _find_shared(self, message: Shared) -> BatchMessage:
        if self.inbox is None:
            raise RemoteProtocolError("a batch came in shared memory, and there is none")
        if len(message.offsets) != len(message.sizes):
            raise RemoteProtocolError(
                "a batch came in places without sizes, or sizes without places"
            )
        # Each place is checked by the inbox: a feeder is not trusted with what this process reads.
        places = zip(message.offsets, message.sizes, strict=True)
        return BatchMessage(message.metadata, tuple(self.inbox.view(*place) for place in places))

    def due(self) -> list[Message]:
        """Return the credit for batches that were taken, and the shared memory that is free again.

        It is nothing until a quarter of all credit is due.
        """
        # Whoever sends lets the interpreter go, and beside a busy thread it takes milliseconds to
        # come back.
        if self._owed * 4 < self._credit_bytes:
            return []
        credit, self._owed = Credit(self._owed), 0
        # RELEASE goes before CREDIT: what the feeder may then send finds these places free.
        offsets = self.inbox.take_freed() if self.inbox is not None else ()
        return [Release(offsets), credit] if offsets else [credit]

    def lost(self, error: StreamrecError) -> StreamrecError:
        """Return the same error, with the position to go on from where it carries one."""
        if isinstance(error, FeedError | Stalled):
            error.position = self.position
        return error

    def _refusal(self, message: Message) -> StreamrecError:
        if isinstance(message, Goaway):
            return FeederDraining(message.text or "the feeder shuts down")
        if isinstance(message, Fault):
            return from_fields(mapping_of(message.fields, "FAULT"))
        raise RemoteProtocolError(f"{type(message).__name__.upper()} came instead of an answer")


def state_of(start: State | None) -> dict[str, Any] | None:
    """Return a place as plain data; ``None`` for the very beginning."""
    if start is None or start == Beginning():
        return None
    return start.to_dict() if isinstance(start, Position | Beginning) else dict(start)
