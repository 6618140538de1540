"""What a client knows and decides, whoever moves the bytes: shared by both kinds of feed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from streamrec.errors import (
    ConfigError,
    FeederDraining,
    FeederLost,
    FeedError,
    RemoteProtocolError,
    Stalled,
    StateError,
    StreamrecError,
    from_fields,
)
from streamrec.feeder import payload
from streamrec.feeder.welcome import mapping_of, read_welcome
from streamrec.flow.channel import EndOfStream
from streamrec.plan.position import VERSION, Position
from streamrec.plan.resume_point import Beginning, read_resume_point
from streamrec.wire import (
    PROTOCOL_VERSIONS,
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
from streamrec.wire.frame import frame_size

if TYPE_CHECKING:
    from streamrec.feeder.shared import Inbox
    from streamrec.plan.position import Fingerprint
    from streamrec.values.batch import Batch

__all__ = ["State", "Subscription", "state_of"]

State = Mapping[str, Any] | Position | Beginning
"""A place in the stream: as an object, or as the plain data of its ``to_dict``."""


class Subscription:
    """One rank's side of a connection: its place in the stream, and what it owes in credit.

    Args:
        dataset: The name under which the feeder serves it.
        rank: Which part of the stream.
        world_size: Of how many.
        batch_size: Records per rank and batch; ``None``: the dataset's own.
        position: Where to go on; ``None``: at the beginning.
        token: What the feeder wants to see.
        fingerprint: What the feeder must serve; ``None``: whatever it is.
        credit_bytes: Bytes of batches that may wait on this side.
        inbox: Memory that the feeder may share.
    """

    def __init__(
        self,
        dataset: str,
        *,
        rank: int,
        world_size: int,
        batch_size: int | None,
        position: State | None,
        token: str | None,
        fingerprint: Fingerprint | None,
        credit_bytes: int,
        inbox: Inbox | None = None,
    ) -> None:
        _check_numbers(rank, world_size, batch_size, credit_bytes)
        self._place = position
        self.fingerprint: Fingerprint | None = None
        self.settings: dict[str, Any] = {}
        self.statistics: dict[str, Any] = {}
        """What the feeder has counted in this run, as far as it has told."""
        self.over = False
        """Whether the run has ended, and no other was started."""
        self._rank = rank
        self._expected = fingerprint
        self._credit_bytes = credit_bytes
        self._owed = credit_bytes
        self._inbox = inbox
        self.hello = Hello(
            dataset=dataset,
            world_size=world_size,
            batch_size=batch_size or 0,
            position_version=VERSION,
            protocol_versions=PROTOCOL_VERSIONS,
            token=token or "",
        )

    @property
    def position(self) -> dict[str, Any] | None:
        """Where to go on; ``None``: at the very beginning."""
        return state_of(self._place)

    def welcome(self, message: Message) -> None:
        """Learn what the feeder serves, and compare it with what is wanted.

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
        self.fingerprint, self.settings = read_welcome(
            message.fingerprint, message.settings, self.hello.world_size
        )
        if self._expected is not None:
            self.fingerprint.check(self._expected, "the expected fingerprint")
        position = self.position
        start = None if position is None else read_resume_point(position)
        if isinstance(start, Position):
            self.fingerprint.check(start.fingerprint)

    def subscribe(self) -> list[Message]:
        """The messages that start a run at the present position."""
        self.over = False
        position = self.position
        data = b"" if position is None else json.dumps(position).encode()
        return [Subscribe(self._rank, data), *self.due()]

    def seek(self, position: State | None) -> None:
        """Change where the next run begins; ``None``: not at all."""
        self._place = self._place if position is None else position

    def note(self, message: Message) -> bool:
        """Whether it was a message beside the stream, which is dealt with.

        Raises:
            RemoteProtocolError: The message cannot be read.
        """
        if not isinstance(message, Statistics):
            return False
        try:
            self.statistics = mapping_of(message.counters)
        except (ValueError, RecursionError) as error:
            raise RemoteProtocolError(f"STATISTICS cannot be read: {error}") from None
        return True

    def take(self, message: Message) -> Batch:
        """The batch that a message brings.

        Raises:
            EndOfStream: The run is over; the position is that of the next.
            FeederDraining: The feeder shuts down.
            StreamrecError: What made the feeder stop.
            RemoteProtocolError: The batch cannot be read.
        """
        if isinstance(message, BatchMessage):
            self._owed += frame_size(len(message.metadata), message.payload_size)
            return self._batch(message)
        if isinstance(message, Shared):
            self._owed += message.size
            return self._batch(self._shared(message))
        if isinstance(message, End):
            self._place = self._end(message)
            self.over = True
            raise EndOfStream
        raise self._refusal(message)

    def _end(self, message: End) -> Position:
        try:
            position = Position.from_dict(json.loads(message.position))
        except (ValueError, RecursionError, StateError) as error:
            raise RemoteProtocolError(f"the position of END cannot be read: {error}") from None
        ours = self.fingerprint, self._rank, self.hello.world_size
        if (position.fingerprint, position.rank, position.world_size) != ours:
            raise RemoteProtocolError("the position of END is of another stream, or another rank")
        return position

    def _batch(self, message: BatchMessage) -> Batch:
        assert self.fingerprint is not None  # the machine lets no batch come before WELCOME
        batch = payload.decode(message, self.fingerprint, self._rank, self.hello.world_size)
        self._place = batch.next_position
        return batch

    def _shared(self, message: Shared) -> BatchMessage:
        if self._inbox is None:
            raise RemoteProtocolError("a batch came in shared memory, and there is none")
        if len(message.offsets) != len(message.sizes):
            raise RemoteProtocolError(
                "a batch came in places without sizes, or sizes without places"
            )
        places = zip(message.offsets, message.sizes, strict=True)
        return BatchMessage(message.metadata, tuple(self._inbox.view(*place) for place in places))

    def due(self) -> list[Message]:
        """What to say of batches that were taken, and of places that nothing refers to any more.

        Nothing, until it is worth the way: whoever sends lets the interpreter go, and beside a
        busy thread it takes milliseconds to come back.
        """
        if self._owed * 4 < self._credit_bytes:
            return []
        credit, self._owed = Credit(self._owed), 0
        offsets = self._inbox.freed() if self._inbox is not None else ()
        return [Release(offsets), credit] if offsets else [credit]

    def lost(self, error: StreamrecError) -> StreamrecError:
        """The same error, with the position to go on from where it carries one."""
        if isinstance(error, FeedError | Stalled):
            error.position = self.position
        return error

    def _refusal(self, message: Message) -> StreamrecError:
        if isinstance(message, Goaway):
            return FeederDraining(message.text or "the feeder shuts down", position=self.position)
        if isinstance(message, Fault):
            return self.lost(_rebuilt(message))
        raise RemoteProtocolError(f"{type(message).__name__.upper()} came instead of an answer")


def _rebuilt(fault: Fault) -> StreamrecError:
    try:
        error = from_fields(mapping_of(fault.fields))
    except (ValueError, RecursionError):
        return RemoteProtocolError("the feeder failed, and its reason cannot be read")
    return error


def state_of(start: State | None) -> dict[str, Any] | None:
    """Return a place as plain data; ``None`` for the very beginning."""
    if start is None or start == Beginning():
        return None
    return start.to_dict() if isinstance(start, Position | Beginning) else dict(start)


def _check_numbers(rank: int, world_size: int, batch_size: int | None, credit_bytes: int) -> None:
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} is not one of a world of {world_size}: from 0 up, below it")
    if batch_size is not None and batch_size < 1:
        raise ConfigError(f"batch_size {batch_size} is less than 1")
    if credit_bytes < 1:
        raise ConfigError(f"credit_bytes {credit_bytes} lets no batch come; give 1 or more")


def connecting_failed(where: str, error: OSError) -> FeederLost:
    """The error for a connection that could not be made."""
    reason = error.strerror or str(error) or type(error).__name__
    return FeederLost(
        f"cannot connect to {where}: {reason}; check that a feeder runs there and can be reached"
    )
