"""Placeholders of damaged and missing records, and the records of a chunk."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import CorruptRecord
from streamrec.formats.shards.tfrecord import DamagedSpan
from streamrec.pipeline.lane.damage_policy import missing_from, placeholder_of
from streamrec.pipeline.lane.record_reader import part_of
from streamrec.pipeline.lane.record_span import RecordSpan
from streamrec.plan.order.coordinates import Coordinates
from streamrec.plan.order.shard_order import Extent
from streamrec.values.record_rows import RecordBlock

CHUNK = Extent(7, 0, shard=3, begin=100, end=900, first_record=10, skip=2, records=5)
"""Records 12 to 16 of a chunk that begins with record 10."""


def block(first: int, count: int) -> RecordBlock:
    sizes = np.full(count, 4)
    return RecordBlock(
        np.zeros(20 * count, np.uint8), 20 * np.arange(count) + 12, sizes, 3, first, 0
    )


@given(st.integers(0, 8), st.integers(0, 12))
def test_a_block_is_cut_to_its_extent(first: int, count: int) -> None:
    whole = block(10 + first, count)
    part = part_of(CHUNK, whole)
    numbers = [n for n in range(10 + first, 10 + first + count) if 12 <= n < 17]
    assert len(part) == len(numbers)
    assert not numbers or part.first_ordinal == numbers[0]
    assert part.offsets.tolist() == [12 + 20 * (n - 10 - first) for n in numbers]


def test_a_whole_shard_has_all_its_records() -> None:
    whole = block(0, 4)
    assert part_of(Extent(0, 0, shard=3), whole) is whole


@pytest.mark.parametrize(
    ("found", "numbers"),
    [(10, [12, 13, 14, 15, 16]), (12, [12, 13, 14, 15, 16]), (15, [15, 16]), (17, []), (19, [])],
)
def test_what_is_missing_takes_the_last_places(found: int, numbers: list[int]) -> None:
    missing = missing_from(CHUNK, found)
    assert len(missing) == len(numbers)
    assert missing.lost
    span = RecordSpan.of(CHUNK, missing)
    assert (~span.rows.ordinals).tolist() == numbers
    assert span.rows.nbytes == 0
    if numbers:
        assert span.after(len(numbers) - 1) == Coordinates(7, 900, 17)


def test_the_placeholder_of_a_damaged_record() -> None:
    fault = CorruptRecord("wrong", url="x", offset=140, record=12)
    damaged = DamagedSpan(140, np.zeros(30, np.uint8), 12, 1, exact=True, fault=fault)
    span = RecordSpan.of(CHUNK, part_of(CHUNK, placeholder_of(damaged, 3)))
    assert (span.before(0), span.after(0)) == (
        Coordinates(7, 140, 12),
        Coordinates(7, 170, 13),
    )
    assert (~span.rows.ordinals).tolist() == [12]
