from __future__ import annotations

import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamrec.config import DatasetSettings, validate
from streamrec.devstore import DevStore, FaultRule
from streamrec.formats.shards.tfrecord import frame
from streamrec.measure.budget import Budget, BudgetSpent
from streamrec.measure.figures import Limits
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.state.resume_point import Beginning
from streamrec.streams.ranks import Rank
from streamrec.streams.session import Entry, LoopSession
from tests.support import asynchronous

SHARD = frame(b"x" * 1000) * 64


class Clock:
    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


def limits(seconds: float = 10.0, size: int = 1000, requests: int = 10) -> Limits:
    return Limits(seconds=seconds, bytes=size, requests=requests)


@given(
    takes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400), st.booleans())),
    part=st.floats(0, 1),
)
@example(takes=[(0, 0, True)], part=0.0)
def test_no_limit_is_exceeded(takes: list[tuple[int, int, bool]], part: float) -> None:
    whole = Budget(limits(), Clock())
    share = whole.share(part)
    taken = [0, 0]
    for requests, size, from_the_share in takes:
        budget = share if from_the_share else whole
        left = budget.left, whole.left
        try:
            budget.take(requests, size)
        except BudgetSpent:
            assert any(
                one.requests < requests or one.bytes < size or not one.seconds for one in left
            )
        else:
            taken = [taken[0] + requests, taken[1] + size]
        for one in (share, whole):
            assert one.spent.requests <= one.limits.requests
            assert one.spent.bytes <= one.limits.bytes
    assert [whole.spent.requests, whole.spent.bytes] == taken


def test_nothing_is_taken_when_the_time_is_over() -> None:
    clock = Clock()
    budget = Budget(limits(seconds=2.0), clock)
    clock.now += 1.5
    budget.before_request(10)
    assert budget.share(0.5).limits.seconds == 0.25
    clock.now += 0.5
    with pytest.raises(BudgetSpent, match="budget of 2 seconds is spent"):
        budget.before_request(10)
    assert budget.spent == limits(seconds=2.0, size=10, requests=1)
    assert budget.left == limits(seconds=0.0, size=990, requests=9)


@pytest.mark.parametrize(
    ("requests", "size", "words"),
    [(11, 0, "10 requests is spent"), (1, 1001, "1,000 bytes is spent")],
)
def test_the_error_says_which_limit_it_is(requests: int, size: int, words: str) -> None:
    with pytest.raises(BudgetSpent, match=words):
        Budget(limits()).take(requests, size)


@asynchronous
async def test_a_block_is_cancelled_when_the_time_is_over() -> None:
    budget = Budget(limits(seconds=0.0))
    with pytest.raises(BudgetSpent, match="0 seconds"):
        async with budget.in_time():
            await asyncio.Event().wait()


@asynchronous
async def test_a_timeout_of_the_block_itself_stays_one() -> None:
    with pytest.raises(TimeoutError, match="mine"):
        async with Budget(limits()).in_time():
            raise TimeoutError("mine")


@pytest.mark.parametrize("requests", [1, 3, 20])
@asynchronous
async def test_a_stream_with_retries_stays_within_it(requests: int) -> None:
    """Listing, first ranges, broken bodies and refusals: the store itself has counted them."""
    faults = [
        FaultRule(ranged=True, probability=0.5, reset_after=5000),
        FaultRule(ranged=True, nth=4, status=503),
    ]
    async with DevStore(faults=faults) as store:
        for number in range(8):
            store.put(f"bucket/part-{number}", SHARD)
        budget = Budget(limits(seconds=60.0, size=1 << 20, requests=requests))
        values = {
            "source": ["s3://bucket/part-*"],
            "storage_options": store.storage_options,
            "batch_size": 16,
            "epochs": None,
            "memory_budget": "8MiB",
        }
        with pytest.raises(BudgetSpent):
            await _read_all(validate(DatasetSettings, values), budget)
        assert budget.spent.requests == store.statistics.requests <= requests
        assert store.statistics.bytes_sent <= 1 << 20


async def _read_all(settings: DatasetSettings, budget: Budget) -> None:
    dataset = await Dataset.open(settings, before_request=budget.before_request)
    session = LoopSession(dataset, Rank(0, 1), Entry(Beginning()))
    try:
        while True:
            await session.receive()
    finally:
        await session.aclose()
