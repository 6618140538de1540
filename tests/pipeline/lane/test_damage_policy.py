"""Which damage is read again; that a reader does what the policy says is tested with the reader."""

from __future__ import annotations

from collections import Counter

import pytest

from streamrec.errors import CorruptRecord, DataError, RecordTooLarge, TruncatedShard
from streamrec.pipeline.lane.damage_policy import DamagePolicy
from streamrec.pipeline.lane.quarantine import CorruptionLog
from streamrec.plan.order.shard_order import Extent
from tests.pipeline.received_ranges import SHARD, received

WHOLE = Extent(0, 0, shard=0)
SIZE = len(SHARD)


def fault_at(offset: int, kind: type[DataError] = CorruptRecord) -> DataError:
    return kind("it is damaged", offset=offset, record=0)


def policy(*, skips: bool) -> DamagePolicy:
    made = DamagePolicy(Counter(), CorruptionLog(["s"], 9) if skips else None)
    made.enter(WHOLE)
    return made


def decided(made: DamagePolicy, fault: DataError, start: int = 0) -> str:
    """Return what a policy does with a fault in a range from ``start`` to the shard's end."""
    try:
        return "again" if made.rereads(fault, received(WHOLE, start, SIZE)) else "skip"
    except DataError as error:
        assert error is fault
        return "raise"


@pytest.mark.parametrize(("skips", "then"), [(False, "raise"), (True, "skip")])
def test_a_fault_that_is_met_twice_is_certain(skips: bool, then: str) -> None:
    made = policy(skips=skips)
    assert [decided(made, fault_at(40)), decided(made, fault_at(40), 40)] == ["again", then]


@pytest.mark.parametrize(("skips", "then"), [(False, "again"), (True, "skip")])
def test_where_damage_is_skipped_no_byte_is_read_a_third_time(skips: bool, then: str) -> None:
    made = policy(skips=skips)
    assert [decided(made, fault_at(40)), decided(made, fault_at(60), 40)] == ["again", then]
    made.enter(WHOLE)
    assert decided(made, fault_at(60)) == ("again" if skips else "raise")


@pytest.mark.parametrize(
    ("kind", "skips", "then"),
    [
        (TruncatedShard, False, "raise"),
        (TruncatedShard, True, "skip"),
        (RecordTooLarge, False, "raise"),
        (RecordTooLarge, True, "raise"),
    ],
)
def test_what_reading_again_cannot_change(kind: type[DataError], skips: bool, then: str) -> None:
    assert decided(policy(skips=skips), fault_at(40, kind)) == then


def test_decompressed_bytes_are_not_read_again() -> None:
    read = received(WHOLE, 0, SIZE)
    read.inflated = True
    assert not policy(skips=True).rereads(fault_at(40), read)
