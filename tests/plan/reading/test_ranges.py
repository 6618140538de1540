from __future__ import annotations

from itertools import count, pairwise, takewhile
from math import inf
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ConfigError
from streamrec.plan.order.shard_order import Extent, ShardOrder
from streamrec.plan.reading.ranges import (
    MIB,
    LaneRanges,
    MemoryPlan,
    RangeRequest,
    ReadAhead,
    grown,
    least_budget,
    sent_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def extents(order: ShardOrder, lane: int, epochs: int | None) -> Iterator[Extent]:
    endless = (order.extent(lane, number) for number in count())
    return endless if epochs is None else takewhile(lambda e: e.epoch < epochs, endless)


def drain(ranges: LaneRanges, size: int) -> list[RangeRequest]:
    return list(iter(lambda: ranges.next(size), None))


SIZES = st.lists(st.integers(0, 100), min_size=1, max_size=8)
COUNTS_READ = st.lists(st.integers(0, 1 << 31), max_size=100).map(sorted)


@given(SIZES, st.integers(1, 5), st.integers(1, 40), st.integers(1, 3))
def test_known_sizes_are_covered_once_in_order(
    sizes: list[int], lanes: int, size: int, epochs: int
) -> None:
    order = ShardOrder(len(sizes), lanes)
    known = dict(enumerate(sizes))
    covered: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for lane in range(lanes):
        ranges = LaneRanges(extents(order, lane, epochs), known, order.reach(lane))
        for request in drain(ranges, size):
            assert 0 < request.stop - request.start <= size
            key = (request.extent.epoch, request.extent.shard)
            covered.setdefault(key, []).append((request.start, request.stop))
        assert ranges.ended
    for (_, shard), parts in covered.items():
        bounds = [0, *(stop for _, stop in parts)]
        assert parts == list(pairwise(bounds))
        assert bounds[-1] == sizes[shard]
    expected = {(e, s) for e in range(epochs) for s, size in enumerate(sizes) if size}
    assert covered.keys() == expected


@given(SIZES, st.integers(1, 40))
def test_of_an_unknown_shard_one_range_is_asked_for(sizes: list[int], size: int) -> None:
    order = ShardOrder(len(sizes), 1)
    known: dict[int, int] = {}
    ranges = LaneRanges(extents(order, 0, 1), known, order.reach(0))
    bytes_of: dict[int, int] = {}
    while not ranges.ended:
        request = ranges.next(size)
        if request is None:
            continue
        shard = request.extent.shard
        if shard not in known:
            assert request.start == 0
            assert ranges.next(size) is None, "the response says the size first"
            known[shard] = sizes[shard]
        bytes_of[shard] = bytes_of.get(shard, 0) + min(request.stop, sizes[shard]) - request.start
    assert bytes_of == dict(enumerate(sizes))


def test_of_an_unknown_shard_hardly_more_is_asked_for_than_the_one_before_had() -> None:
    """Memory is taken for all that is asked for: a sixteenth of it would be used."""
    order = ShardOrder(3, 1)
    known: dict[int, int] = {}
    ranges = LaneRanges(extents(order, 0, 1), known, order.reach(0))
    sizes, asked = [800_000, 100_000, 900_000], []
    assert ranges.rest == inf
    while not ranges.ended:
        request = ranges.next(16 * MIB)
        if request is not None:
            known[request.extent.shard] = sizes[request.extent.shard]
            asked.append((request.extent.shard, request.start, request.stop))
    assert asked == [(0, 0, 16 * MIB), (1, 0, 900_000), (2, 0, 112_500), (2, 112_500, 900_000)]


@given(SIZES, st.integers(1, 40))
def test_what_is_left_of_a_shard_bounds_its_next_range(sizes: list[int], size: int) -> None:
    order = ShardOrder(len(sizes), 1)
    known = dict(enumerate(sizes))
    ranges = LaneRanges(extents(order, 0, 1), known, order.reach(0))
    while not ranges.ended:
        rest, request = ranges.rest, ranges.next(size)
        if request is not None and request.start:
            assert min(size, rest) == request.stop - request.start


@pytest.mark.parametrize(("size", "whole"), [(5, 5), (0, inf), (None, inf)])
def test_the_whole_of_a_shard_is_known_until_all_of_it_is_requested(
    size: int | None, whole: float
) -> None:
    order = ShardOrder(1, 1)
    sizes = {} if size is None else {0: size}
    ranges = LaneRanges(extents(order, 0, 1), sizes, order.reach(0))
    assert ranges.whole == whole
    ranges.next(3)
    assert ranges.whole == whole
    ranges.next(3)
    assert ranges.whole == inf


def test_an_empty_shard_tells_nothing_of_the_next_one() -> None:
    order = ShardOrder(3, 1)
    sizes = {0: 80_000}
    ranges = LaneRanges(extents(order, 0, 1), sizes, order.reach(0))
    ranges.next(80_000)
    assert (ranges.whole, ranges.rest) == (80_000, 90_000)
    ranges.next(90_000)
    sizes[1] = 0
    assert (ranges.whole, ranges.rest) == (80_000, 90_000)
    assert ranges.next(90_000) is not None
    sizes[2] = 8_000
    assert (ranges.whole, ranges.rest) == (8_000, 9_000)


def test_a_probe_tells_first_how_much_there_is() -> None:
    order = ShardOrder(1, 1)
    ranges = LaneRanges(extents(order, 0, 1), {0: 9}, order.reach(0), probes=True)
    assert ranges.whole == inf
    ranges.go_on(4)
    assert ranges.whole == 9


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_endless_lane_of_empty_shards_ends(shuffle: bool) -> None:
    order = ShardOrder(6, 4, shuffle)
    ranges = LaneRanges(extents(order, 1, None), dict.fromkeys(range(6), 0), order.reach(1))
    assert ranges.next(10) is None
    assert ranges.ended


def test_an_endless_lane_goes_on_while_some_shard_has_bytes() -> None:
    order = ShardOrder(3, 3, shuffle=True)
    ranges = LaneRanges(extents(order, 0, None), {0: 0, 1: 5, 2: 0}, order.reach(0))
    requests = [ranges.next(10) for _ in range(50)]
    assert all(request is not None and request.extent.shard == 1 for request in requests)


def test_a_resumed_lane_begins_in_the_middle() -> None:
    order = ShardOrder(2, 1)
    ranges = LaneRanges(extents(order, 0, 1), {0: 100, 1: 7}, order.reach(0), offset=90)
    assert [(r.extent.shard, r.start, r.stop) for r in drain(ranges, 64)] == [
        (0, 90, 100),
        (1, 0, 7),
    ]


def test_an_offset_at_the_end_goes_on_with_the_next_shard() -> None:
    order = ShardOrder(2, 1)
    ranges = LaneRanges(extents(order, 0, 1), {0: 100, 1: 7}, order.reach(0), offset=100)
    assert [(r.extent.shard, r.start) for r in drain(ranges, 64)] == [(1, 0)]


@pytest.mark.parametrize("known", [True, False])
def test_a_look_at_the_beginning_comes_first_and_nothing_before_it_is_over(known: bool) -> None:
    order = ShardOrder(2, 1)
    sizes = {0: 100_000, 1: 7} if known else {}
    ranges = LaneRanges(extents(order, 0, 1), sizes, order.reach(0), probes=True)
    first = ranges.next(1 << 20)
    assert first is not None
    assert (first.start, first.stop) == (0, 4096)
    assert ranges.next(1 << 20) is None
    sizes[0], sizes[1] = 100_000, 7
    assert ranges.next(1 << 20) is None
    ranges.go_on(90_000)
    assert [(r.extent.shard, r.start, r.stop) for r in drain(ranges, 8000)] == [
        (0, 90_000, 98_000),
        (0, 98_000, 100_000),
        (1, 0, 7),
    ]


def test_going_on_behind_the_end_goes_on_with_the_next_shard() -> None:
    order = ShardOrder(2, 1)
    ranges = LaneRanges(extents(order, 0, 1), {0: 100, 1: 7}, order.reach(0), probes=True)
    first = ranges.next(64)
    assert first is not None
    assert (first.start, first.stop) == (0, 64)
    ranges.go_on(100)
    assert [(r.extent.shard, r.start) for r in drain(ranges, 64)] == [(1, 0)]


@given(st.integers(8 * MIB, 1 << 34), st.integers(1, 192), st.integers(0, 1 << 32), st.booleans())
def test_what_is_decompressed_and_what_is_read_share_a_budget(
    total: int, lanes: int, windows: int, near: bool
) -> None:
    try:
        plan = MemoryPlan.divide(total, lanes=lanes, windows=windows, near=near)
    except ConfigError:
        return
    assert windows <= plan.for_inflated
    assert plan.for_inflated + lanes * plan.first_range <= plan.for_ranges


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("windows", [0, 64 * MIB])
def test_compressed_shards_are_read_ahead_from_the_beginning(windows: int, near: bool) -> None:
    plan = MemoryPlan.divide(1024 * MIB, lanes=8, windows=windows, near=near)
    first = ReadAhead(plan).size
    room = plan.room(plan.for_inflated, first)
    plain = plan.room(0, first)
    assert room.ahead == plain.ahead == windows + first
    assert plan.for_inflated + 8 * room.share + plan.room(plan.for_inflated).ahead == (
        plan.for_ranges
    )


def test_a_lane_that_leaves_an_extent_asks_for_the_next() -> None:
    order = ShardOrder(2, 1)
    ranges = LaneRanges(extents(order, 0, 1), {0: 100, 1: 100}, 2)
    first = ranges.next(10)
    assert first is not None
    ranges.leave(first.extent)
    following = ranges.next(10)
    assert following is not None
    assert (following.extent.shard, following.start) == (1, 0)
    ranges.leave(first.extent)  # it has been left already
    assert [request.start for request in drain(ranges, 50)] == [10, 60]
    assert ranges.ended


def test_an_extent_with_an_end_needs_no_size() -> None:
    piece = Extent(0, 0, shard=3, begin=10, end=25)
    ranges = LaneRanges(iter([piece]), {}, reach=1)
    assert [(r.start, r.stop) for r in drain(ranges, 10)] == [(10, 20), (20, 25)]


def test_no_extents_at_all() -> None:
    ranges = LaneRanges(iter([]), {}, reach=1)
    assert ranges.ended
    assert ranges.next(1) is None


@given(st.integers(8 * MIB, 1 << 34), st.integers(1, 192), st.integers(0, 1 << 32), st.booleans())
def test_the_parts_of_a_budget_fit(total: int, lanes: int, windows: int, near: bool) -> None:
    try:
        plan = MemoryPlan.divide(total, lanes=lanes, windows=windows, near=near)
    except ConfigError:
        assert total - total // 4 < windows + lanes * 64 * 1024 + (128 << 20)
        return
    assert plan.speculative >= 0
    assert plan.reserve + plan.windows + lanes * plan.first_range <= total
    assert plan.first_range <= plan.range_size <= 8 * MIB
    assert plan.for_ranges <= total - plan.reserve


@given(st.integers(1, 5000), st.integers(0, 3 << 30))
def test_the_least_budget_serves_and_a_mib_less_does_not(lanes: int, windows: int) -> None:
    least = least_budget(lanes, windows)
    MemoryPlan.divide(least, lanes=lanes, windows=windows)
    with pytest.raises(ConfigError, match=f"set memory_budget to {least // MIB} MiB"):
        MemoryPlan.divide(least - MIB, lanes=lanes, windows=windows)


@pytest.mark.parametrize(("lanes", "kib"), [(1, 512), (24, 512), (25, 256), (48, 256), (192, 256)])
def test_many_heads_are_smaller(lanes: int, kib: int) -> None:
    assert MemoryPlan.divide(1 << 30, lanes=lanes, windows=0).first_range == kib << 10


def test_the_refusal_shows_the_arithmetic_and_what_would_serve() -> None:
    message = (
        "memory_budget of 128 MiB is too small: 32 MiB reserve \\+ 256 MiB shuffle windows "
        "\\+ 48 open shards x 64 KiB; set memory_budget to (\\d+) MiB or more"
    )
    with pytest.raises(ConfigError, match=message) as caught:
        MemoryPlan.divide(128 * MIB, lanes=48, windows=256 * MIB)
    words = str(caught.value).split()
    enough = int(words[words.index("to") + 1]) * MIB
    MemoryPlan.divide(enough, lanes=48, windows=256 * MIB)


@pytest.mark.parametrize(
    ("lanes", "near", "read_ahead", "range_size"),
    [
        (1, True, 96, 8),
        (8, True, 192, 8),
        (48, True, 256, 4),
        (96, True, 256, 2),
        (1, False, 768, 8),
        (48, False, 768, 8),
        (96, False, 768, 4),
        (192, False, 768, 2),
    ],
)
def test_the_read_ahead_holds_ranges_of_every_lane(
    lanes: int, near: bool, read_ahead: int, range_size: int
) -> None:
    plan = MemoryPlan.divide(1024 * MIB, lanes=lanes, windows=0, near=near)
    assert (plan.read_ahead, plan.range_size) == (read_ahead * MIB, range_size * MIB)
    assert plan.for_ranges == plan.read_ahead + lanes * plan.first_range


def test_a_consumer_that_waits_is_read_further_ahead_for_up_to_what_the_plan_allows() -> None:
    plan = MemoryPlan.divide(1024 * MIB, lanes=48, windows=0)
    ahead = ReadAhead(plan)
    rooms = []
    for _ in range(20):
        rooms.append(plan.room(read_ahead=ahead.size).ahead)
        ahead.grow(0)
    assert rooms == sorted(rooms)
    assert (rooms[0], rooms[-1]) == (128 * MIB, 768 * MIB)
    assert rooms[-1] == plan.room().ahead


@given(st.integers(8 * MIB, 1 << 31), st.integers(1, 192), st.booleans(), COUNTS_READ)
def test_reading_ahead_never_exceeds_the_most_and_always_grows_to_it(
    total: int, lanes: int, near: bool, nbytes_read: list[int]
) -> None:
    try:
        plan = MemoryPlan.divide(total, lanes=lanes, windows=0, near=near)
    except ConfigError:
        return
    ahead, most = ReadAhead(plan), min(plan.read_ahead, plan.speculative)
    for read in nbytes_read:
        before = ahead.size
        ahead.grow(read)
        assert before < ahead.size <= most or before == ahead.size == most


@pytest.mark.parametrize(
    ("total", "near", "first", "most"),
    [
        (1024, False, 128, 768),
        (64, False, 6, 36),
        (1024, True, 48, 256),
        (64, True, 6.75, 36),
    ],
)
def test_as_great_a_part_of_any_budget_is_read_ahead_at_first(
    total: int, near: bool, first: float, most: int
) -> None:
    plan = MemoryPlan.divide(total * MIB, lanes=48, windows=0, near=near)
    assert ReadAhead(plan).size == first * MIB
    assert plan.room().ahead == most * MIB


@pytest.mark.parametrize(("lanes", "first"), [(1, 8), (8, 8), (24, 24), (192, 192)])
def test_of_files_on_this_machine_little_is_read_ahead_at_first(lanes: int, first: int) -> None:
    plan = MemoryPlan.divide(1024 * MIB, lanes=lanes, windows=0, near=True)
    assert ReadAhead(plan).size == first * MIB


def test_a_small_beginning_is_over_after_a_few_waits() -> None:
    """Several clients of a feeder wait for the processor, too, so they wait for few ranges."""
    ahead = ReadAhead(MemoryPlan.divide(1024 * MIB, lanes=8, windows=0, near=True))
    sizes, nbytes_read = [ahead.size], 0
    for _ in range(6):
        nbytes_read += ahead.size
        ahead.grow(nbytes_read)
        sizes.append(ahead.size)
    assert [size // MIB for size in sizes] == [8, 16, 32, 64, 128, 144, 162]


def test_it_does_not_double_for_a_client_that_reads_little() -> None:
    ahead = ReadAhead(MemoryPlan.divide(1024 * MIB, lanes=8, windows=0, near=True))
    for _ in range(3):
        ahead.grow(6 * MIB)
    assert ahead.size < 12 * MIB


@given(st.integers(8 * MIB, 1 << 31), st.integers(1, 192), st.integers(0, 1 << 30))
def test_room_for_less_is_never_more(total: int, lanes: int, windows: int) -> None:
    try:
        plan = MemoryPlan.divide(total, lanes=lanes, windows=windows)
    except ConfigError:
        return
    least, most = plan.room(read_ahead=ReadAhead(plan).size), plan.room()
    assert least.share == most.share
    assert 0 <= least.ahead <= most.ahead


def test_ranges_grow() -> None:
    assert [grown(1, 20), grown(4, 20), grown(16, 20)] == [4, 20, 20]


@given(st.integers(0, 30), st.integers(0, 30))
def test_ranges_grow_to_the_largest_past_none_of_half_of_it(size: int, largest: int) -> None:
    sizes = [min(1 << size, 1 << largest)]
    while sizes[-1] < 1 << largest:
        sizes.append(grown(sizes[-1], 1 << largest))
        assert sizes[-1] > sizes[-2]
    assert sizes[-1] == 1 << largest
    assert not [size for size in sizes[1:-1] if 2 * size >= sizes[-1]]


@given(st.integers(1, 192), st.integers(0, 1 << 32))
def test_what_the_refusal_asks_for_is_enough_and_hardly_more(lanes: int, windows: int) -> None:
    with pytest.raises(ConfigError) as refused:
        MemoryPlan.divide(1, lanes=lanes, windows=windows)
    words = str(refused.value).split()
    enough = int(words[words.index("set") + 3]) * MIB
    MemoryPlan.divide(enough, lanes=lanes, windows=windows)
    with pytest.raises(ConfigError):
        MemoryPlan.divide(enough - 2 * MIB, lanes=lanes, windows=windows)


@given(st.integers(8 * MIB, 1 << 31), st.integers(1, 192), st.integers(0, 1 << 30), st.data())
def test_shares_and_what_lies_beyond_never_exceed_the_plan(
    total: int, lanes: int, windows: int, data: st.DataObject
) -> None:
    """Whoever asks for what, in whatever order: the sum stays within, and each gets its share."""
    try:
        plan = MemoryPlan.divide(total, lanes=lanes, windows=windows)
    except ConfigError:
        return
    reserved = data.draw(st.integers(0, plan.for_inflated))
    room = plan.room(reserved)
    assert room.share >= plan.first_range
    taken = [0] * min(lanes, 5)
    sizes = st.tuples(st.integers(0, len(taken) - 1), st.integers(1, 64 * MIB))
    for lane, size in data.draw(st.lists(sizes, max_size=30)):
        if size <= room.reach(taken[lane], sum(map(room.beyond, taken))):
            taken[lane] += size
        else:
            assert taken[lane] + size > room.share
    assert reserved + sum(max(one, room.share) for one in taken) <= (
        plan.for_ranges - (lanes - len(taken)) * room.share
    )
    assert plan.waiting + sent_bytes(total) <= plan.reserve


def test_a_batch_is_held_with_the_one_before_it_and_those_that_wait() -> None:
    plan = MemoryPlan.divide(1024 * MIB, lanes=4, windows=0)
    assert (plan.waiting, sent_bytes(plan.total)) == (48 * MIB, 32 * MIB)
    assert plan.held(MIB, is_sent=False) == 50 * MIB
    assert plan.held(140 * MIB, is_sent=False) == 3 * 140 * MIB
    assert plan.held(MIB, is_sent=True) == 82 * MIB
    assert plan.held(140 * MIB, is_sent=True) == 4 * 140 * MIB
    assert plan.held(300 * MIB, is_sent=False) == plan.decoded
    assert plan.held(300 * MIB, is_sent=True) == plan.decoded + 300 * MIB


def test_what_is_claimed_beyond_its_part_leaves_each_lane_its_head() -> None:
    plan = MemoryPlan.divide(64 * MIB, lanes=4, windows=8 * MIB)
    room = plan.room(2 * plan.for_ranges)
    assert room.share == plan.first_range
    assert room.reach(0, 0) == plan.first_range
    assert room.reach(plan.first_range, 0) == 0
