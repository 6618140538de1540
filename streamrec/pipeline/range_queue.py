"""What is known of the shards, and the ranges of each lane: to come, under way, and received."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from streamrec.errors import ObjectChanged
from streamrec.flow.pool import Account
from streamrec.masking import masked_repr
from streamrec.pipeline.indexed import check_version
from streamrec.plan.position import object_tag
from streamrec.plan.ranges import RangeRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamrec.errors import DataError, StoreError
    from streamrec.plan.ranges import LaneRanges
    from streamrec.stores.base import ObjectInfo
    from streamrec.types import Octets

__all__ = ["Piece", "Progress", "RangeQueue", "RangeRead", "Shards", "Turns"]


@dataclass(slots=True)
class Shards:
    """The shards' names, and what the store has said about them."""

    urls: Sequence[str]
    sizes: dict[int, int] = field(default_factory=dict)
    etags: dict[int, str | None] = field(default_factory=dict)
    """The pinned version of each object that was listed or read."""
    encodings: dict[int, str] = field(default_factory=dict)
    """The Content-Encoding of objects that are stored with one."""
    expected_tags: dict[int, int] = field(default_factory=dict)
    """The versions that a resumed position was in the middle of, as short tags."""
    indexed: dict[int, tuple[int, str | None]] = field(default_factory=dict)
    """Size and version in the index of shards of which no listing has told them."""
    _tags: dict[int, int] = field(default_factory=dict)
    _known_empty: set[int] = field(default_factory=set)

    __repr__ = masked_repr

    def mark_empty(self, shard: int) -> None:
        """A compressed shard turned out to hold nothing: it is as good as empty."""
        self._known_empty.add(shard)
        self.sizes[shard] = 0

    def learn(self, shard: int, info: ObjectInfo) -> None:
        """Pin what a response says.

        Raises:
            ObjectChanged: It is not the version that the resumed position was saved from.
            StaleIndex: It is not the version that was indexed.
        """
        if shard in self.indexed:
            check_version(info, *self.indexed[shard])
            del self.indexed[shard]
        tag = self.expected_tags.pop(shard, 0)
        if tag and info.etag is not None and object_tag(info.etag) != tag:
            raise ObjectChanged(
                "the position was saved in the middle of another version of this object "
                f"({tag:05x}) than the store has now (ETag {info.etag}); restore the object, or "
                "begin anew",
                url=self.urls[shard],
            )
        if info.size is not None and shard not in self._known_empty:
            self.sizes[shard] = info.size
        if info.encoding is not None:
            self.encodings[shard] = info.encoding
        self.etags.setdefault(shard, info.etag)

    def tag(self, shard: int) -> int:
        """A short tag of the object's version; 0 while that is not known."""
        if shard not in self._tags and shard in self.etags:
            self._tags[shard] = object_tag(self.etags[shard])
        return self._tags.get(shard, 0)


@dataclass(slots=True, eq=False)
class RangeRead:
    """A range on its way into memory."""

    request: RangeRequest
    memory: Octets
    filled: int = 0
    """Bytes that have been received."""
    scanned: int = 0
    """Bytes that the scanner has consumed."""
    heard_at: float = 0.0
    """When the last byte came, or else the present request was sent: the event loop's seconds."""
    silence: float = 0.0
    """The longest time without a byte, in seconds."""
    done: bool = False
    resting: bool = False
    """Whether it waits before it is tried again."""
    last_failure: StoreError | None = None
    """What was tried again."""
    error: StoreError | None = None
    """Why it was given up."""

    @property
    def shard(self) -> int:
        """The shard's number."""
        return self.request.extent.shard

    def receive(self, count: int, now: float) -> None:
        """So many more bytes have been received."""
        self.filled += count
        self.silence = max(self.silence, now - self.heard_at)
        self.heard_at = now


@dataclass(slots=True, eq=False)
class Piece:
    """Decompressed bytes of a shard that follow each other: what a range is to a plain one."""

    request: RangeRequest
    """Where they stand among the shard's decompressed bytes."""
    memory: Octets
    filled: int = 0
    scanned: int = 0
    done: bool = False
    error: DataError | StoreError | None = None
    shard_size: int | None = None
    """Bytes of the whole shard, decompressed, once its end has come."""

    def close(self) -> None:
        """No more bytes will come: it is as long as what came."""
        request = self.request
        self.request = replace(request, stop=request.start + self.filled)
        self.memory, self.done = self.memory[: self.filled], True


@dataclass(slots=True, eq=False)
class Progress:
    """What a lane has, and what it needs; kept by the lane."""

    ready: float = 0
    """Bytes of records that wait to be merged, about; 0: there are none."""
    record: float = 0
    """The mean size of a record, in bytes."""
    lacks: int = 0
    """Bytes that the lane needs before it has records again, as far as it knows."""


@dataclass(slots=True, eq=False)
class Turns:
    """In which of its feeds a lane goes on, where it takes some of each in turn."""

    feeds: int
    """How many there are."""
    number: int
    """The turn's, from 0 up in each epoch."""
    taken: int
    """Bytes that were taken in it."""
    size: float = 1.0
    """Bytes that are taken in a turn, about."""

    @property
    def feed(self) -> int:
        """Whose turn it is."""
        return self.number % self.feeds

    def go_on(self) -> None:
        """The next one's turn begins."""
        self.number, self.taken = self.number + 1, 0

    def until(self, feed: int, nbytes: float) -> float:
        """How many bytes the lane takes before it has taken so many of a feed, about."""
        away = (feed - self.number) % self.feeds
        rounds, rest = divmod(nbytes + (0 if away else self.taken), self.size)
        return max(0.0, (rounds * self.feeds + away) * self.size + rest - self.taken)


@dataclass(slots=True, eq=False)
class RangeQueue:
    """The ranges of one lane: those to come, and those that wait to be scanned."""

    planner: LaneRanges
    size: int
    """Bytes of the next range."""
    ranges: deque[RangeRead] = field(default_factory=deque)
    """Changed by the methods alone, which keep count of their bytes."""
    account: Account = field(default_factory=Account)
    """The lane's memory: ranges, those that rows still refer to, and straddling records."""
    progress: Progress = field(default_factory=Progress)
    """What the lane has made of it; of a mix, of all its components together."""
    share: float = 1.0
    """Where a lane has several feeds, which part of its records are of this one, about."""
    until: Callable[[float], float] | None = None
    """Where it takes turns, how many bytes it takes before so many of this one."""
    undrawn: float = 0
    """Where a lane has several feeds, bytes of this one's records that wait to be drawn."""
    repair: RangeRequest | None = None
    """What is to be read once more, before anything else."""
    answered: bool = False
    """Whether the store has begun to answer for the lane."""
    _asked: int = field(init=False)
    """Bytes of all ranges; kept, since there may be many and every start looks at it."""

    def __post_init__(self) -> None:
        """Count what is there."""
        self._asked = sum(len(read.memory) for read in self.ranges)

    @property
    def first(self) -> RangeRead | None:
        """The range that comes next; none before what is read once more is there."""
        return self.ranges[0] if self.ranges and self.repair is None else None

    def add(self, read: RangeRead) -> None:
        """A range is asked for, behind all others."""
        self.ranges.append(read)
        self._asked += len(read.memory)

    def add_repair(self, read: RangeRead) -> None:
        """What was to be read once more is asked for: it comes first."""
        self.repair = None
        self.ranges.appendleft(read)
        self._asked += len(read.memory)

    def drop(self) -> RangeRead:
        """The first range is used up."""
        read = self.ranges.popleft()
        self._asked -= len(read.memory)
        return read

    def withdraw(self) -> None:
        """What was asked for last is of no use."""
        self._asked -= len(self.ranges.pop().memory)

    @property
    def ahead(self) -> int:
        """Bytes that are asked for and not yet scanned; only the first range is being scanned."""
        return self._asked - (self.ranges[0].scanned if self.ranges else 0)

    @property
    def straddling(self) -> int:
        """Bytes, about, of the record that is being put together of several ranges."""
        return self.account.in_use - self._asked

    @property
    def least(self) -> float:
        """What the next range needs: less than its size only where the shard has much less left.

        Memory of many different sizes could not be used again.
        """
        rest = self.planner.rest
        return rest if 2 * rest <= self.size else self.size

    @property
    def charged(self) -> float:
        """The lane's memory, and what it will take for the record behind each unscanned range.

        That one straddles it and the next range, and is copied.
        """
        return self.account.in_use + len(self.ranges) * self.progress.record

    @property
    def distance(self) -> float:
        """How far away the next range is from being needed, in bytes that the lane delivers before.

        What is read to complete a window is needed all at once, when the records before it are
        used up.
        """
        own = self.undrawn + self.ahead
        ahead = own / self.share if self.until is None else self.until(own)
        lacks = self.progress.lacks
        return self.progress.ready + (ahead - lacks if ahead >= lacks else ahead / lacks - 1)

    @property
    def ended(self) -> bool:
        """Whether nothing waits and nothing will come."""
        return not self.ranges and self.repair is None and self.planner.ended

    def reread(self, start: int) -> None:
        """Have the first range read again from the byte ``start`` of its shard on."""
        read = self.drop()
        self.repair = RangeRequest(read.request.extent, start, read.request.stop)
