from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import (
    CorruptBudgetExceeded,
    CorruptCompression,
    CorruptLength,
    StaleIndex,
    StoreUnavailable,
    TruncatedShard,
)
from streamrec.pipeline.feeds import LaneFeed, Piece, Progress, RangeRead, Shards
from streamrec.pipeline.quarantine import Losses
from streamrec.pipeline.scan import Scan
from streamrec.pipeline.stages import Coordinates, Stretch
from streamrec.plan.order import Extent
from streamrec.plan.ranges import RangeRequest
from tests.pipeline.landed import END, SHARD, STARTS, damaged, landed, nothing_more
from tests.support import asynchronous

if TYPE_CHECKING:
    from streamrec.formats.tfrecord import Lost

pytestmark = pytest.mark.both_kernels

URLS = [f"shard{i}" for i in range(3)]
START = Coordinates(0, 0, 0)
WHOLE = Extent(0, 0, shard=0)
SIZE = len(SHARD)


def feed_of(*reads: RangeRead) -> LaneFeed:
    return LaneFeed(nothing_more(), 1, deque(reads))


def scan_of(feed: Any, start: Coordinates = START, *, size: int = SIZE, **values: Any) -> Scan:
    shards = Shards(URLS, sizes=dict.fromkeys(range(3), size))
    return Scan(feed, shards, start, END, check_crc=True, **values)


def scan_over(*reads: RangeRead, **values: Any) -> Scan:
    return scan_of(feed_of(*reads), **values)


def pop_all(scan: Scan) -> list[Any]:
    """What it gives now: of stretches, the numbers of their records; ``~n`` of a lost one."""
    out: list[Any] = []
    while (item := scan.pop()) is not None:
        out += item.rows.ordinals.tolist() if isinstance(item, Stretch) else [item]
    return out


ALL = [0, 1, 2, 3, 4, 5]

# -- what is intact --------------------------------------------------------------------------------


@given(st.lists(st.integers(0, SIZE), max_size=6))
def test_ranges_cut_anywhere_give_every_record_with_its_coordinates(cuts: list[int]) -> None:
    bounds = [0, *sorted(set(cuts) - {0, SIZE}), SIZE]
    extent = Extent(4, 0, shard=1)
    scan = scan_over(*(landed(extent, a, b) for a, b in itertools.pairwise(bounds)))
    places, number = [], 0
    while isinstance(item := scan.pop(), Stretch):
        for row in range(len(item)):
            assert item.before(row) == Coordinates(4, STARTS[number], number)
            places.append(item.after(row))
            number += 1
    assert places == [Coordinates(4, STARTS[i + 1], i + 1) for i in range(6)]
    assert (item, scan.ended, scan.pop()) == (END, True, None)


def test_a_range_that_grows() -> None:
    read = landed(WHOLE, 0, SIZE)
    read.filled, read.done = STARTS[2] + 5, False
    scan = scan_over(read)
    assert (pop_all(scan), scan.ended, scan.waits_for) == ([0, 1], False, "fetch")
    read.filled, read.done = SIZE, True
    assert (pop_all(scan), scan.ended) == ([2, 3, 4, 5, END], True)


def test_resumed_within_a_shard_the_numbers_go_on() -> None:
    start = Coordinates(0, STARTS[4], 4)
    following = landed(Extent(1, 0, shard=1), 0, SIZE)
    scan = scan_over(landed(WHOLE, STARTS[4], SIZE), following, start=start)
    assert pop_all(scan) == [4, 5, *ALL, END]


@pytest.mark.parametrize("epoch", [None, 1, 0])
def test_the_next_epoch_is_told_by_where_it_begins(epoch: int | None) -> None:
    """Of what comes first, where the lane stood in another before."""
    reads = [landed(Extent(n, n, shard=n), 0, SIZE) for n in (1, 2)]
    first = [Coordinates(1, 0, 0)] if epoch == 0 else []
    assert pop_all(scan_over(*reads, epoch=epoch)) == [
        *first,
        *ALL,
        Coordinates(2, 0, 0),
        *ALL,
        END,
    ]


def test_an_empty_shard_of_unknown_size_begins_no_epoch() -> None:
    """Those of known size are never asked for, and a lane's place must not tell the difference."""
    reads = [landed(Extent(n, n, shard=n), 0, SIZE if n in (0, 2) else 0) for n in range(3)]
    scan = scan_over(*reads)
    del scan._shards.sizes[1]  # as before its answer
    reads[1].done = False
    assert pop_all(scan) == ALL
    scan._shards.sizes[1], reads[1].done = 0, True
    assert pop_all(scan) == [Coordinates(2, 0, 0), *ALL, END]


def test_an_epoch_begins_as_soon_as_the_size_of_its_first_shard_is_known() -> None:
    reads = [landed(Extent(n, n, shard=n), 0, SIZE) for n in range(2)]
    reads[1].filled, reads[1].done = 0, False
    scan = scan_over(*reads)
    del scan._shards.sizes[1]
    assert pop_all(scan) == ALL
    scan._shards.sizes[1] = SIZE
    assert pop_all(scan) == [Coordinates(1, 0, 0)]


def test_a_shard_that_cannot_be_read_begins_its_epoch() -> None:
    """So that all that comes before its error is given."""
    reads = [landed(Extent(n, n, shard=n), 0, SIZE) for n in range(2)]
    reads[1].filled, reads[1].error = 0, StoreUnavailable("away")
    scan = scan_over(*reads)
    del scan._shards.sizes[1]
    first, second = scan.pop(), scan.pop()
    assert isinstance(first, Stretch)
    assert (len(first), second) == (len(ALL), Coordinates(1, 0, 0))
    with pytest.raises(StoreUnavailable, match="away"):
        scan.pop()


def test_a_shard_of_nothing() -> None:
    scan = scan_over(landed(WHOLE, 0, 0, b""), size=0)
    assert (pop_all(scan), scan.ended) == ([END], True)


def test_what_landed_before_a_failure_comes_first() -> None:
    read = landed(WHOLE, 0, SIZE)
    read.filled, read.done, read.error = STARTS[2] + 1, False, StoreUnavailable("gone")
    scan = scan_over(read)
    first = scan.pop()
    assert isinstance(first, Stretch)
    assert first.rows.ordinals.tolist() == [0, 1]
    with pytest.raises(StoreUnavailable, match="gone"):
        scan.pop()
    assert not scan.ended


# -- damage that ends the lane ---------------------------------------------------------------------


def test_damage_is_read_once_more_and_then_an_error() -> None:
    bad = damaged(STARTS[3])
    feed = feed_of(landed(WHOLE, 0, SIZE, bad))
    scan = scan_of(feed)
    assert pop_all(scan) == [0, 1, 2]
    assert feed.repair == RangeRequest(WHOLE, STARTS[3], SIZE)
    feed.add_repair(landed(WHOLE, STARTS[3], SIZE, bad))
    with pytest.raises(CorruptLength) as caught:
        scan.pop()
    assert (caught.value.url, caught.value.offset, caught.value.record) == ("shard0", STARTS[3], 3)
    assert scan.refetched == 0


@pytest.mark.parametrize("at", range(STARTS[3], STARTS[4]))
@pytest.mark.parametrize("cut", [0, STARTS[3] + 5])
def test_damage_that_is_gone_the_second_time_loses_nothing(at: int, cut: int) -> None:
    """In every byte of a record, whether it lies in one range or straddles two."""
    bad = damaged(at)
    before = [landed(WHOLE, 0, cut, bad)] if cut else []
    feed = feed_of(*before, landed(WHOLE, cut, SIZE, bad))
    scan = scan_of(feed)
    assert (pop_all(scan), scan.ended) == ([0, 1, 2], False)
    assert feed.repair == RangeRequest(WHOLE, STARTS[3], SIZE)
    feed.add_repair(landed(WHOLE, STARTS[3], SIZE))
    assert (pop_all(scan), scan.ended, scan.refetched) == ([3, 4, 5, END], True, 1)


def test_a_shard_that_ends_inside_a_record_is_not_read_again() -> None:
    feed = feed_of(landed(WHOLE, 0, SIZE - 3))
    scan = scan_of(feed, size=SIZE - 3)
    assert isinstance(scan.pop(), Stretch)
    with pytest.raises(TruncatedShard):
        scan.pop()
    assert feed.repair is None


def test_of_what_was_decompressed_nothing_is_read_again() -> None:
    with pytest.raises(CorruptLength):
        pop_all(scan_of(Inflated(damaged(STARTS[3]))))


CHUNK = Extent(0, 0, shard=0, begin=STARTS[1], end=STARTS[4], first_record=1, skip=1, records=2)


def test_of_a_chunk_its_own_records_come() -> None:
    assert pop_all(scan_over(landed(CHUNK, STARTS[1], STARTS[4]))) == [2, 3, END]


@pytest.mark.parametrize("change", [{"records": 3}, {"end": STARTS[4] - 1}])
def test_an_index_that_is_wrong_about_a_chunk(change: dict[str, int]) -> None:
    facts: dict[str, Any] = {"begin": STARTS[1], "end": STARTS[4], "first_record": 1, "skip": 1}
    extent = Extent(0, 0, 0, **{**facts, "records": 2, **change})
    assert extent.end is not None
    with pytest.raises(StaleIndex, match=r"shard0: the index says that record .*`streamrec index`"):
        pop_all(scan_over(landed(extent, STARTS[1], extent.end)))


# -- damage that is skipped ------------------------------------------------------------------------


class Keeper:
    """Stores what is skipped when it is told to."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, int]] = []
        self.storing: list[asyncio.Future[None]] = []

    def keep(self, shard: int, lost: Lost) -> asyncio.Future[None]:
        self.kept.append((shard, lost.offset))
        self.storing.append(asyncio.get_running_loop().create_future())
        return self.storing[-1]

    def close(self) -> None:
        """Nothing is open."""


def skipped(scan: Scan, feed: LaneFeed, data: bytes) -> list[Any]:
    """All that comes, where nothing is better when it is read again."""
    out = pop_all(scan)
    while feed.repair is not None:
        again = feed.repair
        feed.add_repair(landed(again.extent, again.start, again.stop, data))
        out += pop_all(scan)
    return out


@pytest.mark.parametrize("at", range(STARTS[2], STARTS[3]))
@pytest.mark.parametrize("keeps_places", [False, True])
def test_a_damaged_record_is_skipped_or_leaves_its_place(at: int, keeps_places: bool) -> None:
    bad = damaged(at)
    feed, losses = feed_of(landed(WHOLE, 0, SIZE, bad)), Losses(URLS, 1)
    scan = scan_of(feed, losses=losses, keeps_places=keeps_places)
    place = [~2] if keeps_places else []
    assert skipped(scan, feed, bad) == [0, 1, *place, 3, 4, 5, END]
    assert losses.statistics()["skipped_bytes"] == STARTS[3] - STARTS[2]
    assert losses.met == 6


def test_a_record_too_many() -> None:
    bad = damaged(STARTS[2] + 20)
    feed = feed_of(landed(WHOLE, 0, SIZE, bad))
    with pytest.raises(CorruptBudgetExceeded):
        skipped(scan_of(feed, losses=Losses(URLS, 0)), feed, bad)


@asynchronous
async def test_nothing_passes_what_is_still_being_stored() -> None:
    bad = damaged(STARTS[2] + 20)
    feed, keeper, told = feed_of(landed(WHOLE, 0, SIZE, bad)), Keeper(), asyncio.Event()
    scan = scan_of(feed, losses=Losses(URLS, 1, keeper), tell=told.set)
    assert skipped(scan, feed, bad) == [0, 1]
    assert (keeper.kept, scan.waits_for) == ([(0, STARTS[2])], "quarantine")
    assert pop_all(scan) == []
    keeper.storing[0].set_result(None)
    await told.wait()
    assert (pop_all(scan), scan.waits_for) == ([3, 4, 5, END], "fetch")
    assert len(keeper.kept) == 1


@asynchronous
async def test_what_cannot_be_stored_ends_the_lane() -> None:
    bad = damaged(STARTS[2] + 20)
    feed, keeper, told = feed_of(landed(WHOLE, 0, SIZE, bad)), Keeper(), asyncio.Event()
    scan = scan_of(feed, losses=Losses(URLS, 1, keeper), tell=told.set)
    skipped(scan, feed, bad)
    keeper.storing[0].set_exception(StoreUnavailable("full"))
    await told.wait()
    with pytest.raises(StoreUnavailable, match="full"):
        scan.pop()


def test_what_a_chunk_lacks_has_rows_of_its_own() -> None:
    """The index counts four more records than there are before the chunk's end."""
    extent = Extent(0, 0, shard=0, end=STARTS[2], records=6)
    losses = Losses(URLS, 4)
    scan = scan_over(landed(extent, 0, STARTS[2]), losses=losses, keeps_places=True)
    assert pop_all(scan) == [0, 1, ~2, ~3, ~4, ~5, END]
    assert losses.statistics()["skipped_records"] == 4


@pytest.mark.parametrize("reach", [1, 2])
def test_a_lane_in_which_nothing_is_intact_is_hopeless(reach: int) -> None:
    extents = [Extent(n, n, shard=0) for n in range(9)]
    feed = feed_of(*(landed(extent, 0, 0, b"") for extent in extents))
    scan = scan_of(feed, losses=Losses(URLS, 1.0), reach=reach, size=0)
    with pytest.raises(CorruptBudgetExceeded, match=f"read {2 * reach + 1} shards or chunks"):
        pop_all(scan)


class Inflated:
    """A compressed shard of which this came out before its end, or before a fault."""

    def __init__(self, data: bytes, fault: CorruptCompression | None = None) -> None:
        memory = np.frombuffer(data, np.uint8)
        piece = Piece(RangeRequest(WHOLE, 0, len(data)), memory, len(data), error=fault)
        piece.done, piece.shard_size = fault is None, None if fault else len(data)
        self.pieces = deque([piece])
        self.progress = Progress()

    @property
    def first(self) -> Piece | None:
        return self.pieces[0] if self.pieces else None

    @property
    def ended(self) -> bool:
        return not self.pieces

    def drop(self) -> None:
        self.pieces.popleft()

    give_up = drop


@pytest.mark.parametrize("came", [STARTS[3], STARTS[3] + 5])
def test_what_a_compressed_shard_lacks_is_skipped(came: int) -> None:
    fault = CorruptCompression("is no stream", offset=100)
    losses = Losses(URLS, 1)
    scan = scan_of(Inflated(SHARD[:came], fault), losses=losses)
    assert pop_all(scan) == [0, 1, 2, END]
    lost = came - STARTS[3] + SIZE - 100  # bytes that came out, and those that did not go in
    assert losses.statistics()["skipped_bytes"] == lost


def test_a_compressed_shard_that_is_damaged_is_an_error_else() -> None:
    fault = CorruptCompression("is no stream", offset=100)
    with pytest.raises(CorruptCompression):
        pop_all(scan_of(Inflated(SHARD[: STARTS[3]], fault)))


@pytest.mark.parametrize("losses", [None, Losses(URLS, 1.0)])
def test_a_store_that_fails_is_no_damage(losses: Losses | None) -> None:
    feed = Inflated(SHARD[: STARTS[3]])
    feed.pieces[0].done, feed.pieces[0].error = False, StoreUnavailable("gone")
    with pytest.raises(StoreUnavailable):
        pop_all(scan_of(feed, losses=losses))
