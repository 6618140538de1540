from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamrec.config import DatasetSettings, validate
from streamrec.devstore import DevStore, FaultRule
from streamrec.errors import ConfigError
from streamrec.formats.shards.tfrecord import frame
from streamrec.measure.budget import DEFAULT, Budget, BudgetSpent, costs, most_costs, read_prices
from streamrec.measure.figures import Figures, Job, Limits, Listing, Machine, Target
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.state.resume_point import Beginning
from streamrec.streams.ranks import Rank
from streamrec.streams.session import LoopSession
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path


LISTING = Listing(shards=1000, bytes=10**12, requests=2, seconds=1.0)
JOB = Job(
    ended="seconds",
    seconds=10.0,
    first_batch_seconds=0.1,
    batches=100,
    records=1000,
    bytes=9 * 10**9,
    bytes_read=10**10,
    requests=1000,
    stalled=0.0,
    waits={},
)


def figures(url: str = "s3://bucket/*", kind: Any = "store", **more: Any) -> Figures:
    machine = Machine(
        cpu="", cores=1, memory_bytes=1, system="", python="", streamrec="", kernel="native"
    )
    spent = Limits(seconds=60.0, bytes=20 * 10**9, requests=5002)
    return Figures(
        taken="2026-01-01T00:00:00+00:00",
        target=Target(kind=kind, urls=[url]),
        machine=machine,
        limits=spent,
        spent=spent,
        **more,
    )


def priced(tmp_path: Path, old: str, new: str) -> Path:
    path = tmp_path / "prices.toml"
    text = DEFAULT.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize("url", ["s3://bucket/*", "gs://bucket/*"])
def test_requests_and_pages_have_prices_of_their_own(url: str) -> None:
    found = costs(figures(url, listing=LISTING, job=JOB), read_prices())
    assert found is not None
    assert found.currency == "USD"
    assert found.spent == pytest.approx(5000 * 0.4e-6 + 2 * 5e-6)
    assert found.epoch == found.epoch_requests
    assert found.epoch_requests == pytest.approx(100_000 * 0.4e-6 + 2 * 5e-6)
    assert "same region" in found.prices
    assert "https://" in found.prices


def test_bytes_cost_elsewhere(tmp_path: Path) -> None:
    path = priced(tmp_path, 'reader = "same region"', 'reader = "internet"')
    found = costs(figures(listing=LISTING, job=JOB), read_prices(path))
    assert found is not None
    assert found.epoch is not None
    assert found.epoch_requests is not None
    assert found.spent == pytest.approx(20 * 0.09 + 5000 * 0.4e-6 + 2 * 5e-6)
    assert found.epoch - found.epoch_requests == pytest.approx(1000 * 0.09)


def test_the_most_that_a_benchmark_costs(tmp_path: Path) -> None:
    prices = read_prices(priced(tmp_path, 'reader = "same region"', 'reader = "internet"'))
    limits = Limits(seconds=60.0, bytes=20 * 10**9, requests=5000)
    most = most_costs(figures().target, limits, prices)
    assert most == pytest.approx(20 * 0.09 + 5000 * 5e-6)


def test_without_a_job_there_is_no_epoch() -> None:
    found = costs(figures(listing=LISTING), read_prices())
    assert found is not None
    assert found.epoch is None
    assert found.epoch_requests is None


def test_without_a_listing_all_requests_are_reads() -> None:
    found = costs(figures(job=JOB), read_prices())
    assert found is not None
    assert found.spent == pytest.approx(5002 * 0.4e-6)
    assert found.epoch is None


@pytest.mark.parametrize("url", ["/data/*", "https://host/x", "az://bucket/x"])
def test_other_stores_have_no_prices(url: str) -> None:
    assert costs(figures(url, listing=LISTING), read_prices()) is None


def test_a_feeder_has_no_prices() -> None:
    assert costs(figures("tcp://host:1/x", "feeder"), read_prices()) is None


def test_the_prices_are_dated_and_name_their_sources() -> None:
    prices = read_prices()
    assert prices.taken > dt.date(2026, 1, 1)
    assert all(store.source.startswith("https://") for store in prices.stores.values())


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('reader = "same region"', 'reader = "moon"', "'moon'.*'same region'"),
        ("0.0004", "-0.0004", "get_per_1000.*greater than or equal to 0"),
        ("0.0004", "inf", "get_per_1000.*finite"),
        ("list_per_1000", "list_per_100", "list_per_100"),
        ("taken = 2026-11-25", 'taken = "yesterday"', "taken"),
        ("currency =", "currency", "TOML"),
    ],
)
def test_a_wrong_file_is_refused(old: str, new: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        read_prices(priced(tmp_path, old, new))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read"):
        read_prices(tmp_path / "none.toml")


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
    with pytest.raises(BudgetSpent, match=r"the budget, 2.0 s, is spent; raise --seconds$"):
        budget.before_request(10)
    assert budget.spent == limits(seconds=2.0, size=10, requests=1)
    assert budget.left == limits(seconds=0.0, size=990, requests=9)


@pytest.mark.parametrize(
    ("requests", "size", "words"),
    [
        (11, 0, "the budget, 10 requests, is spent; raise --max-requests"),
        (1, 1001, "the budget, 1,000 bytes, is spent; raise --max-bytes"),
    ],
)
def test_the_error_says_which_limit_it_is(requests: int, size: int, words: str) -> None:
    with pytest.raises(BudgetSpent, match=words):
        Budget(limits()).take(requests, size)


def test_a_part_of_a_budget_is_called_so() -> None:
    clock = Clock()
    part = Budget(limits(seconds=9.55682), clock).share(0.5)
    clock.now += 5
    with pytest.raises(BudgetSpent, match=r"the part of the budget for this, 4.8 s, is spent"):
        part.before_request(10)


@asynchronous
async def test_a_block_is_cancelled_when_the_time_is_over() -> None:
    budget = Budget(limits(seconds=0.0))
    with pytest.raises(BudgetSpent, match=r"0\.0 ms, is spent; raise --seconds"):
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
    session = LoopSession(dataset, Rank(0, 1), Beginning())
    try:
        while True:
            await session.receive()
    finally:
        await session.aclose()
