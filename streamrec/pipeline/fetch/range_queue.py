"""The state of shards and of lanes' ranges: wanted, planned, in flight and received."""

from __future__ import annotations

from collections import deque
from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from streamrec.errors import ObjectChanged, StaleIndex
from streamrec.flow.pool import Account
from streamrec.masking import masked_repr
from streamrec.plan.reading.ranges import LARGEST_RANGE, RangeRequest
from streamrec.stores.base.protocol import same_version

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from streamrec.errors import StoreError, StreamrecError
    from streamrec.formats.shards.index import ShardEntry
    from streamrec.pipeline.terms.exclusions import Exclusions
    from streamrec.plan.order.shard_order import Extent
    from streamrec.plan.reading.ranges import LaneRanges
    from streamrec.stores.base.protocol import ObjectInfo
    from streamrec.values.columns import ByteArray


class Demand(NamedTuple):
    """A lane's records that are ready, and its need of one of its sublanes."""

    ready: float = 0
    """The approximate bytes of records that wait to be merged; exactly 0 if there are none."""
    lacks: int = 0
    """Bytes that the lane must read before it has records again, if it knows; else 0."""
    undrawn: int = 0
    """Bytes of this sublane's records that wait to be drawn, if the lane has several sublanes."""
    share: float = 1.0
    """The approximate share of the lane's records that come from this sublane."""

    @property
    def is_empty(self) -> bool:
        """True if the lane has no record, ready or undrawn."""
        return not (self.ready or self.undrawn)

    def distance(self, ahead: float) -> float:
        """Estimate the bytes that the lane delivers before it needs the sublane's next range.

        Args:
            ahead: Requested bytes of the sublane whose records are still to be read.
        """
        until = (self.undrawn + ahead) / self.share
        # Bytes that complete a window are all needed at once, when the records before are used up.
        return self.ready + (until - self.lacks if until >= self.lacks else until / self.lacks - 1)


class Consumer(Protocol):
    """A lane, as far as the fetcher knows it."""

    record_size: float
    """The mean size of a record, in bytes."""

    def demand(self, number: int) -> Demand:
        """Return its demand of its sublane of that number."""
        ...


_V = TypeVar("_V")
A_BIT_MORE = 3 / 2
"""How much larger than its lane's ranges a shard may be, and still be read by one request: of a
shard that is read in two, the second part costs as much CPU time as the first."""


def check_version(info: ObjectInfo, size: int, etag: str | None) -> None:
    """Check that a shard has the size that was indexed, and the ETag where the index has one.

    Raises:
        StaleIndex: They differ.
    """
    if info.size is not None and info.size != size:
        what = f"the shard has {info.size} bytes, and had {size} when it was indexed"
    elif info.etag and etag and not same_version(info.etag, etag):
        what = f"the shard's version is {info.etag}, and was {etag} when it was indexed"
    else:
        return
    raise StaleIndex(
        f"the index is stale: {what}; fetch the shard again if it is damaged, otherwise write the "
        "index again with `streamrec index`",
        url=info.url,
    )


class LearnedFacts(MutableMapping[int, _V]):
    """The facts that a run has learned of shards, in front of those of its dataset.

    A run learns of the shards that it reads. A copy of the facts about a million shards would take
    as many steps of the event loop, and their memory again.

    Args:
        known: The dataset's facts, which all its runs share.
    """

    __slots__ = ("_known", "_learned")

    def __init__(self, known: Mapping[int, _V]) -> None:
        self._known = known
        self._learned: dict[int, _V] = {}

    def __getitem__(self, shard: int) -> _V:
        return self._learned[shard] if shard in self._learned else self._known[shard]

    def get(self, shard: int, default: Any = None) -> Any:
        """Return a fact, or the default; often, so it takes no exception to find none."""
        learned = self._learned.get(shard)
        return self._known.get(shard, default) if learned is None else learned

    def __setitem__(self, shard: int, fact: _V) -> None:
        self._learned[shard] = fact

    def __delitem__(self, shard: int) -> None:
        raise TypeError("a fact is never forgotten")

    def __iter__(self) -> Iterator[int]:
        return iter(self._known.keys() | self._learned.keys())

    def __len__(self) -> int:
        return len(self._known.keys() | self._learned.keys())


@dataclass(slots=True)
class Shards:
    """The shards' names, and the facts that stores have given about them."""

    urls: Sequence[str]
    sizes: MutableMapping[int, int] = field(default_factory=dict)
    """The sizes in bytes; 0 for a compressed shard of nothing, so that it is not read again."""
    etags: MutableMapping[int, str | None] = field(default_factory=dict)
    """The pinned version of each object that was listed or read."""
    encodings: MutableMapping[int, str] = field(default_factory=dict)
    """The Content-Encoding of objects that are stored with one."""
    expected: dict[int, int] = field(default_factory=dict)
    """The sizes of shards that a resumed position was in the middle of."""
    entries: Sequence[ShardEntry] = ()
    """The index's entries of all shards; empty without an index."""
    unlisted: Container[int] = ()
    """The shards whose listing lacks a size or version, to be compared with the index when read."""
    excluded: Exclusions | None = None
    """The records that are never delivered; ``None``: no list was named."""
    compared: set[int] = field(default_factory=set)
    """The shards that have been compared with the index."""

    __repr__ = masked_repr

    def learn(self, shard: int, info: ObjectInfo) -> None:
        """Keep the facts of a response, and check that the object's version is the expected one.

        Raises:
            ObjectChanged: The size is not that of the shard that the position was saved from.
            StaleIndex: The size or ETag is not the one that was indexed.
        """
        # Once is enough: later answers are of the pinned version.
        if shard in self.unlisted and shard not in self.compared:
            check_version(info, self.entries[shard].size, self.entries[shard].etag)
            self.compared.add(shard)
        self._check_size(shard, info.size)
        # A size of 0 stays: the shard may be a compressed one that decompressed to nothing.
        if info.size is not None and self.sizes.get(shard) != 0:
            self.sizes[shard] = info.size
        if info.encoding is not None:
            self.encodings[shard] = info.encoding
        # The first answer's version stays: all later ranges must be of it.
        self.etags.setdefault(shard, info.etag)

    def expect(self, shard: int, size: int) -> None:
        """Expect the shard to have the size that a resumed position names.

        Raises:
            ObjectChanged: It has another one.
        """
        self.expected[shard] = size
        self._check_size(shard, self.sizes.get(shard) or None)

    def size_of(self, shard: int) -> int:
        """Return the size of a shard that was begun, here or before the resumed position."""
        return self.sizes.get(shard, self.expected.get(shard, 0))

    def _check_size(self, shard: int, size: int | None) -> None:
        expected = self.expected.get(shard, size)
        if size is not None and size != expected:
            raise ObjectChanged(
                f"reading stopped in the middle of a shard of {expected} bytes, but it now has "
                f"{size}; restore the object, or begin anew",
                url=self.urls[shard],
            )


@dataclass(slots=True, eq=False)
class RangeRead:
    """A range that is being read into memory, or decompressed into it."""

    request: RangeRequest
    """The range; of a compressed shard, within the decompressed bytes or the stored ones."""
    memory: ByteArray
    filled: int = 0
    """Bytes that have been received."""
    scanned: int = 0
    """Bytes that have been used: records were read from them, or they were decompressed."""
    heard_at: float = 0.0
    """The event loop's time, in seconds, of the last byte or else of the request."""
    answered_at: float | None = None
    """The time of the last request's first byte; ``None``: it has not come."""
    silence: float = 0.0
    """The longest time without a byte, in seconds."""
    done: bool = False
    resting: bool = False
    """True while it waits before a retry."""
    last_failure: StoreError | None = None
    """The last failure that was retried."""
    error: StreamrecError | None = None
    """The error with which it was given up."""
    inflated: bool = False
    """True if the bytes are decompressed ones."""
    in_place: bool = False
    """True if the memory is a part of a large record's, from which nothing need be copied."""
    shard_size: int | None = None
    """The decompressed shard's size in bytes, once its end has come."""

    @property
    def shard(self) -> int:
        """The shard's number."""
        return self.request.extent.shard

    @property
    def unused(self) -> ByteArray:
        """The received bytes that have not been used."""
        return self.memory[self.scanned : self.filled]

    def receive(self, count: int, now: float) -> None:
        """Count ``count`` received bytes, at the event loop's time ``now`` in seconds."""
        self.filled += count
        self.answered_at = now if self.answered_at is None else self.answered_at
        self.silence = max(self.silence, now - self.heard_at)
        self.heard_at = now

    def close(self) -> None:
        """Mark the range as complete, with the bytes that have come."""
        self.request = replace(self.request, stop=self.request.start + self.filled)
        self.memory, self.done = self.memory[: self.filled], True


@dataclass(slots=True, eq=False)
class LargeRecord:
    """A record larger than its lane's ranges: its frame is read into one piece of memory.

    Pieced together from ranges, it would take twice the memory meanwhile, and a copy.
    """

    extent: Extent
    start: int
    """The byte of the shard at which its frame begins."""
    stop: int
    """The byte after its frame."""
    memory: ByteArray | None = None
    """The memory of the frame; ``None`` until the budget has room for all of it."""
    refused: bool = False
    """True if the system has no such memory."""

    @property
    def size(self) -> int:
        """Bytes of its frame."""
        return self.stop - self.start

    @property
    def waits(self) -> bool:
        """True while it is to get its memory."""
        return self.memory is None and not self.refused

    def place_of(self, request: RangeRequest) -> ByteArray | None:
        """Return the part of the memory that a range belongs into; ``None``: it has none."""
        is_part = request.extent is self.extent and self.start <= request.start < self.stop
        if self.memory is None or not is_part:
            return None
        return self.memory[request.start - self.start : request.stop - self.start]


@dataclass(eq=False)
class RangeQueue:
    """A queue of one sublane's ranges, in flight or received, with the planner of the next ones."""

    planner: LaneRanges
    size: int
    """The size of the next range in bytes."""
    ranges: deque[RangeRead] = field(default_factory=deque)
    """The queue itself; only the methods change it, as they count its bytes."""
    pieces: deque[RangeRead] = field(default_factory=deque)
    """The decompressed pieces, which come before all ranges."""
    account: Account = field(default_factory=Account)
    """The lane's memory: ranges, queued or still referred to by rows, and straddling records."""
    repair: RangeRequest | None = None
    """The range to read again, before anything else."""
    answered: bool = False
    """True once the store has begun to answer for the lane."""
    small_shard: float = 0
    """Bytes of a shard that is read by one request from the beginning on."""
    record_size: float = 0
    """Bytes of the run's largest records, as far as they are known."""
    large: LargeRecord | None = None
    """The record that the first ranges end in, if it is larger than ranges are."""
    _asked: int = field(init=False)
    """The total bytes of the queued ranges, kept as a sum since every schedule needs it."""
    _in_place: int = 0
    """The same of those that are in place."""

    def __post_init__(self) -> None:
        """Count the bytes of the given ranges."""
        self._asked = sum(len(read.memory) for read in self.ranges)

    @property
    def first(self) -> RangeRead | None:
        """The range or piece whose records are read next."""
        return self.pieces[0] if self.pieces else self.stored

    @property
    def stored(self) -> RangeRead | None:
        """The first range; none while one is still to be read again."""
        return self.ranges[0] if self.ranges and self.repair is None else None

    @property
    def decompresses(self) -> bool:
        """True while bytes that have been received must be decompressed before they can be read."""
        return False

    @property
    def ended(self) -> bool:
        """True when no range or piece waits and none will come."""
        waits = self.ranges or self.pieces or self.repair is not None
        return not waits and self.planner.ended

    # -- for the reader ----------------------------------------------------------------------------

    def drop(self) -> None:
        """Remove the first range or piece, which is used up."""
        if self.pieces:
            self.pieces.popleft()
        else:
            self.drop_stored()
            self.changed()

    def reread(self, start: int) -> None:
        """Drop the first range, and have it read again from byte ``start`` of its shard on."""
        # Its memory goes too: a flipped bit may have come from it.
        self.large = None
        request = self.drop_stored().request
        self.repair = RangeRequest(request.extent, start, request.stop)

    def give_up(self, extent: Extent) -> None:
        """Drop the ranges and pieces of an extent, and request nothing more of it."""
        self.planner.leave(extent)
        self.large = None
        while self.pieces and self.pieces[0].request.extent is extent:
            self.pieces.popleft()
        while self.ranges and self.ranges[0].request.extent is extent:
            self.drop_stored()
        self.changed()

    def drop_stored(self) -> RangeRead:
        """Remove and return the first range."""
        read = self.ranges.popleft()
        self._asked -= len(read.memory)
        self._in_place -= len(read.memory) * read.in_place
        return read

    def find_large(self, extent: Extent, start: int, size: int) -> LargeRecord | None:
        """Return the record at the end of what was read, if it is to get memory of its own.

        Args:
            extent: The extent.
            start: The byte of the shard at which its frame begins.
            size: Bytes of the frame.
        """
        large = self.large
        if large is not None and large.extent is extent and large.start == start:
            return large
        # Else ranges as large as they are will do, or all of it is requested already.
        self.large = None
        if size > self.size and self.planner.place_in(extent) < start + size:
            self.large = LargeRecord(extent, start, start + size)
        return self.large

    def end_large(self, extent: Extent, offset: int) -> None:
        """Forget the large record if the next one begins at ``offset`` of the extent."""
        large = self.large
        if large is not None and (large.extent is not extent or offset >= large.stop):
            self.large = None

    # -- for the fetcher ---------------------------------------------------------------------------

    def changed(self) -> None:
        """Take in the news of the ranges."""

    def add(self, read: RangeRead) -> None:
        """Append a range that has been requested."""
        self.ranges.append(read)
        self._asked += len(read.memory)
        self._in_place += len(read.memory) * read.in_place

    def add_repair(self, read: RangeRead) -> None:
        """Put the range that has been requested again in front of the others."""
        self.repair = None
        self.ranges.appendleft(read)
        self._asked += len(read.memory)

    def clear(self) -> None:
        """Drop everything."""
        self.ranges.clear()
        self.pieces.clear()
        self.large = None
        self._asked = self._in_place = 0

    @property
    def ahead(self) -> int:
        """Requested bytes whose records are still to be read; only the first range is in use."""
        return self._asked - (self.ranges[0].scanned if self.ranges else 0)

    @property
    def next_large(self) -> LargeRecord | None:
        """The large record that the next range to request is a part of."""
        large = self.large
        if large is None or large.refused or self.planner.place_in(large.extent) >= large.stop:
            return None
        return large

    @property
    def missing(self) -> int:
        """Bytes of the large record that have not been received."""
        large = self.next_large
        left = 0 if large is None else large.stop - int(self.planner.place_in(large.extent))
        return left + sum(len(one.memory) - one.filled for one in self.ranges if one.in_place)

    @property
    def until_next(self) -> int:
        """Requested bytes whose records come before the one that the next range is a part of."""
        # All of a large record is needed at once, as soon as the records before it are used up.
        return self.ahead if self.next_large is None else 0

    @property
    def straddling(self) -> int:
        """The approximate bytes of the record that is being assembled from several ranges."""
        return self.account.in_use - self._asked

    @property
    def least(self) -> float:
        """Bytes of memory that the next range needs: fewer than its size only at a shard's end."""
        rest = self.planner.rest
        # Only a much smaller rest gets a smaller piece: pieces of many sizes are hard to reuse.
        return rest if self.is_last or 2 * rest <= self.size else self.size

    @property
    def is_last(self) -> bool:
        """True if the next range takes all that is left of a shard, as the shard is so small."""
        # In parts, a record as large as its shard would be copied into memory of its own, and all
        # lanes together could fill the budget with records of which each lacks some bytes.
        one_record = min(A_BIT_MORE * self.record_size, LARGEST_RANGE)
        return self.planner.whole <= max(self.small_shard, A_BIT_MORE * self.size, one_record)

    def charged(self, record_size: float) -> float:
        """Return its memory in bytes, with that for records which straddle its ranges."""
        # A record at the end of each range goes on in the next one, so that it must be copied.
        # Records that are larger than ranges are all copied: as many bytes as the ranges have that
        # are not in place.
        copied = self._asked - self._in_place
        return self.account.in_use + min(len(self.ranges) * record_size, copied)
