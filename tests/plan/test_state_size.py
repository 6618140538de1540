"""The size of states: less than 5 KB of JSON for 64 lanes, at any position."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.config import Pack
from streamrec.plan.order.coordinates import LANE, OWN, POINT, POINTS, structured
from streamrec.plan.order.shard_order import open_at_once
from streamrec.plan.state.fingerprint import Fingerprint, by_shard
from streamrec.plan.state.position import LARGEST, LAST_EPOCH, MOST_CRC, MOST_SKIPPED, Position

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

LANES = 64
LIMIT = 5000
OF_SEVERAL = 6000
"""Bytes of a state with several points a lane."""
LONG = Fingerprint(
    names="0123456789abcdef",
    shards=99_999_999,
    order="shard",
    lanes=LANES,
    shuffle=True,
    seed=(1 << 63) - 1,
    shuffle_window=1 << 40,
    global_batch=1 << 20,
)
"""Each of its settings is about as long as it ever is."""
STAGES: dict[str, dict[str, Any]] = {
    "plain": {"shuffle": False, "seed": 0, "shuffle_window": 0},
    "shuffled": {},
    "single records": {"global_batch": None},
    "as it comes": {"order": "shard, as it comes"},
    "filter": {"order": "shard, as kept", "stages": "filter project.data.texts:is_long_enough"},
    "pack": {"stages": str(Pack(8192, bins=16, documents=32))},
}
SEEDS = st.integers(0, (1 << 32) - 1)


def anything(rows: int, seed: int, largest: int = LARGEST) -> Numbers:
    """Numbers that have nothing in common."""
    return np.random.default_rng(seed).integers(0, largest, (rows, LANES), endpoint=True)


def sizes_of(count: int, seed: int, largest: int = LARGEST) -> Numbers:
    return np.random.default_rng(seed).integers(1, largest, count, endpoint=True)


def size(position: Position) -> int:
    text = json.dumps(position.to_dict())
    assert Position.from_dict(json.loads(text)) == position
    return len(text)


@given(SEEDS, st.booleans(), st.sampled_from(sorted(STAGES)))
def test_by_shard_it_holds_for_any_numbers_at_all(seed: int, by_two: bool, stages: str) -> None:
    """Each lane anywhere in shards of 280 TB, in windows of as many records, in any epoch."""
    fingerprint = replace(LONG, **STAGES[stages])
    lanes = anything(OWN, seed)
    lanes[5] *= fingerprint.shuffle
    lanes[7] *= stages == "pack"
    if by_two:
        lanes[:, 0], lanes[:, 1] = 0, LARGEST
        lanes[5] *= fingerprint.shuffle
    lanes[3] &= MOST_CRC
    skip = MOST_SKIPPED if fingerprint.global_batch is None else 0
    place = LARGEST, 0, 1, LAST_EPOCH, LAST_EPOCH
    sizes = sizes_of(LANES, seed)[:, None]
    position = Position(fingerprint, *place, structured(lanes, LANE), sizes, skip)
    assert size(position) < LIMIT


def test_by_record_it_takes_little_for_any_number_of_lanes() -> None:
    order = "record:0123456789abcdef"
    fingerprint = replace(LONG, order=order, lanes=1 << 16)
    start = Position.start(fingerprint, [], rank=0, world_size=1, epoch=LAST_EPOCH, step=LARGEST)
    assert size(start) < 512


def of(fingerprint: Fingerprint, own: Numbers, sizes: Numbers, sources: Numbers) -> Position:
    """Make the position of these rows."""
    place = 10**9, 0, 1, 900, 900
    points = structured(sources, POINT)
    return Position(
        fingerprint, *place, structured(own, LANE), sizes.reshape(points.shape), sources=points
    )


def mixed(components: int, seed: int, *, shard: int, records: int) -> Position:
    """Return a position in a mix of equal components; each lane is somewhere in one of ten.

    Rows of a window, records of a lane between two windows, packs of a group: as many as there
    are in the default window of 256 MiB, and in a hundred of them.
    """
    weights = {f"component-{number}": round(1 / components, 3) for number in range(components)}
    mix = f"from 0: {json.dumps(weights)}; repeat"
    own = anything(OWN, seed, 1)
    for row, most in ((2, 1 << 17), (4, 100), (5, 1 << 17), (7, 1 << 10)):
        own[row] = anything(1, seed + row, most)
    bases = np.array([[999_990], [0], [0], [0]]).repeat(components, axis=0)
    limits = np.array([[10], [shard], [records], [MOST_CRC]]).repeat(components, axis=0)
    sources = bases + anything(POINTS * components, seed) % (limits + 1)
    own[1] = own[3] = 0
    fingerprint = replace(LONG, mix=mix)
    sizes = sizes_of(components * LANES, seed, shard)
    return of(fingerprint, own, sizes, sources.reshape(POINTS, components, -1))


@pytest.mark.parametrize(
    ("components", "shard", "records"),
    [
        (2, 1 << 46, 1 << 40),
        (3, 1 << 39, 1 << 28),
        (4, 1 << 30, 1 << 20),
    ],
)
@given(seed=SEEDS)
def test_of_a_mix_it_holds_for_shards_of_some_length(
    seed: int, components: int, shard: int, records: int
) -> None:
    position = mixed(components, seed, shard=shard, records=records)
    assert position.components == components
    assert size(position) < OF_SEVERAL


@pytest.mark.parametrize(
    ("lanes", "open_shards", "most"),
    [(64, 2, OF_SEVERAL), (48, 3, OF_SEVERAL), (8, 18, OF_SEVERAL), (1, 144, 7000)],
)
@given(seed=SEEDS)
def test_of_lanes_with_several_shards_open_it_holds_too(
    seed: int, lanes: int, open_shards: int, most: int
) -> None:
    """Anywhere in shards of 70 TB, of which an epoch has a million, and in the default windows."""
    assert open_shards == open_at_once(1 << 20, lanes, 256 << 20)
    random = np.random.default_rng(seed)
    fingerprint = replace(LONG, order=by_shard(open_shards), lanes=lanes)
    own = np.zeros((OWN, lanes), np.int64)
    limits = {0: 2, 1: 1 << 28, 2: 1 << 20, 4: 1 << 20, 5: 1 << 17, 6: 1 << 34}
    for row, largest in limits.items():
        own[row] = random.integers(0, largest, lanes, endpoint=True)
    sources = np.stack(
        [
            990_000 + random.integers(0, 10, lanes * open_shards, endpoint=True),
            random.integers(0, 1 << 46, lanes * open_shards, endpoint=True),
            random.integers(0, 1 << 40, lanes * open_shards, endpoint=True),
            random.integers(0, MOST_CRC, lanes * open_shards, endpoint=True),
        ]
    )
    sizes = random.integers(1, 1 << 46, lanes * open_shards, endpoint=True)
    assert size(of(fingerprint, own, sizes, sources.reshape(POINTS, open_shards, lanes))) < most


def test_what_has_nothing_in_common_takes_its_bits_and_a_quarter() -> None:
    """The price of one more component: its numbers and its size, and five heads of some bytes."""
    sizes = [size(mixed(n, 0, shard=1 << 30, records=1 << 20)) for n in (2, 3, 4)]
    bits = 4 + 31 + 21 + 32 + 30
    more = 1.25 * (LANES * bits / 8 + 5 * 4) + len(', "component-3": 0.333')
    assert np.diff(sizes) == pytest.approx(more, abs=40)
