from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.feeder.page.samples import EVERY, LATELY, LateLog, Samples, late_ranks
from streamrec.flow.stages import TABLE
from streamrec.flow.timings import BOUNDS


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def snapshot_at(
    clock: Clock,
    *,
    sent: int = 0,
    first_bytes: list[int] | None = None,
    waits: dict[str, float] | None = None,
    kept_back: dict[str, float] | None = None,
    subscriptions: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    reads = {"read": {"first_byte": {"counts": first_bytes, "sum": 0.0}}} if first_bytes else {}
    return {
        "taken": 1e9 + clock.now,
        "datasets": {
            "train": {
                "sent": {"bytes": sent, "records": sent // 100, "batches": 0},
                "waits": waits or {},
                "kept_back": kept_back or {},
            },
            "other": {
                "sent": {"bytes": 0, "records": 0, "batches": 0},
                "waits": {},
                "kept_back": {},
            },
        },
        "timings": {"s3": reads} if reads else {"s3": {"list": {}}},
        "subscriptions": subscriptions or [],
        "budget": {"used": 7},
    }


def subscription(since: float, sent: int, **waits: float) -> dict[str, Any]:
    counts = {"bytes": sent, "records": sent // 100}
    return {"worker": 1, "id": 1, "since": 1e9 + since, "waits": waits, **counts}


def test_a_sample_is_what_has_happened_between_two_snapshots() -> None:
    clock = Clock()
    samples = Samples(clock=clock)
    before, after = [0] * (len(BOUNDS) + 1), [0] * (len(BOUNDS) + 1)
    before[5], after[5], after[4] = 9, 9, 4  # the 9 slower ones are of the past
    samples.take(snapshot_at(clock, sent=500, first_bytes=before, waits={"body": 1.0}))
    clock.now += 5
    now = snapshot_at(
        clock,
        sent=1500,
        first_bytes=after,
        waits={"body": 1.0, "wire": 2.0},
        kept_back={"buffers": 3.0},
    )
    samples.take(now)
    shown = samples.add_to(now)
    assert shown.items() > {key: now[key] for key in ("taken", "budget", "timings")}.items()
    (sample,) = shown["samples"]
    assert sample == {
        "taken": now["taken"],
        "seconds": 5.0,
        "bytes_per_second": 200.0,
        "records_per_second": 2.0,
        "first_byte_p50": pytest.approx((BOUNDS[3] + BOUNDS[4]) / 2),
        "waits": {"wire": 2.0},
        "kept_back": {"buffers": 3.0},
        "subscriptions": 0,
        "memory": 7,
    }


def test_where_nothing_happens_there_is_no_first_byte() -> None:
    clock = Clock()
    samples = Samples(clock=clock)
    for _ in range(2):
        samples.take(snapshot_at(clock))
        clock.now += 5
    (sample,) = samples.add_to(snapshot_at(clock))["samples"]
    assert (sample["bytes_per_second"], sample["first_byte_p50"]) == (0.0, None)


@given(st.lists(st.integers(0, 10**9), max_size=30), st.integers(1, 10))
def test_the_ring_is_bounded_and_counters_that_fall_are_no_rates(
    sent: list[int], most: int
) -> None:
    clock = Clock()
    samples = Samples(most, clock)
    for count in sent:
        samples.take(snapshot_at(clock, sent=count, waits={"body": float(count)}))
        clock.now += 2
    kept = samples.add_to(snapshot_at(clock))["samples"]
    assert len(kept) == min(most, max(len(sent) - 1, 0))
    rates = [max(b - a, 0) / 2 for a, b in pairwise(sent)]
    assert [sample["bytes_per_second"] for sample in kept] == rates[-most:]
    assert all(wait > 0 for sample in kept for wait in sample["waits"].values())


def test_a_clock_that_stands_still_makes_no_sample() -> None:
    clock = Clock()
    samples = Samples(clock=clock)
    for _ in range(3):
        samples.take(snapshot_at(clock))
    assert samples.add_to(snapshot_at(clock))["samples"] == []


def rates(samples: Samples, clock: Clock, each: dict[str, Any]) -> dict[str, float]:
    (shown,) = samples.add_to(snapshot_at(clock, subscriptions=[each]))["subscriptions"]
    now: dict[str, float] = shown["now"]
    return now


def test_the_rates_of_a_subscription_are_those_since_its_beginning_at_first() -> None:
    clock = Clock()
    samples = Samples(clock=clock)
    samples.take(snapshot_at(clock))
    began = clock.now
    clock.now += 2
    now = rates(samples, clock, subscription(began, 1000, body=0.5, client=1.5))
    assert now == {
        "bytes_per_second": 500.0,
        "records_per_second": 5.0,
        "stalled": 0.25,
        "seconds": 2.0,
        "waits": {"body": 0.5, "client": 1.5},
    }


def test_then_they_are_those_of_the_last_interval_or_two() -> None:
    clock = Clock()
    samples = Samples(clock=clock)
    began = clock.now
    for sent in (0, 10**6, 2 * 10**6):
        samples.take(snapshot_at(clock, subscriptions=[subscription(began, sent, body=clock.now)]))
        clock.now += 5
    now = rates(samples, clock, subscription(began, 2 * 10**6, body=clock.now - 5))
    assert now == {
        "bytes_per_second": 1e5,
        "records_per_second": 1e3,
        "stalled": 0.5,
        "seconds": 10.0,
        "waits": {"body": 5.0},
    }


def test_a_subscription_with_the_number_of_another_is_another() -> None:
    clock = Clock()
    samples = Samples(clock=clock)
    samples.take(snapshot_at(clock, subscriptions=[subscription(clock.now, 10**6, body=9.0)]))
    clock.now += 5
    began, clock.now = clock.now, clock.now + 1
    assert rates(samples, clock, subscription(began, 100))["bytes_per_second"] == 100.0


def lately(*counts: tuple[int, float]) -> dict[str, Any] | None:
    """Return what a subscription did lately, of its bytes and its waits every five seconds."""
    clock = Clock()
    samples = Samples(clock=clock)
    began, found = clock.now, snapshot_at(clock)
    for sent, decode in counts:
        found = snapshot_at(clock, subscriptions=[subscription(began, sent, decode=decode)])
        samples.take(found)
        clock.now += EVERY
    [each] = samples.add_to(found)["subscriptions"]
    does: dict[str, Any] | None = each["lately"]
    return does


def test_lately_is_the_last_half_minute() -> None:
    found = lately((100, 9.0), *((200 + step, 9.0 + step) for step in range(7)))
    assert found is not None
    assert (found["seconds"], found["stalled"]) == (35.0, pytest.approx(6 / 35))


@pytest.mark.parametrize("count", [1, 4])
def test_a_subscription_that_has_just_begun_is_not_compared(count: int) -> None:
    assert lately(*[(100, 1.0)] * count) is None


def test_the_first_batch_is_not_compared() -> None:
    assert lately((0, 5.0), *[(500, 9.0)] * 6) is None
    stuck = lately(*((0, EVERY * step) for step in range(7)))
    assert stuck is not None
    assert stuck["stalled"] > 0.8


def reader(rank: int, stalled: float, **changes: Any) -> dict[str, Any]:
    """Return a subscription with what it did lately."""
    waits = {"decode": LATELY * stalled, "client": LATELY * (1 - stalled)}
    lately = {"stalled": stalled, "seconds": LATELY, "waits": waits}
    place = {"dataset": "train", "world_size": 3, "rank": rank, "peer": f"host-{rank}"}
    return {**place, "lately": lately, **changes}


LATE = [reader(0, 0.0), reader(1, 0.4), reader(2, 0.02)]


def test_the_rank_that_waits_much_longer_than_the_others_is_named() -> None:
    [line] = late_ranks(LATE)
    assert line.startswith("train: rank 1 on host-1 waited 40% of the last 30 s, the others 1%")
    assert line.endswith(TABLE["decode"].awaited)


@pytest.mark.parametrize(
    "other",
    [
        reader(1, 0.4, dataset="other"),
        reader(1, 0.4, world_size=2),
        reader(1, 0.4, lately=None),
        {name: fact for name, fact in reader(1, 0.4).items() if name != "lately"},
        reader(1, 0.05),
    ],
    ids=["another dataset", "another job", "young", "of an older feeder", "as fast"],
)
def test_no_rank_is_named(other: dict[str, Any]) -> None:
    assert late_ranks([reader(0, 0.0), other, reader(2, 0.02)]) == []


def test_the_log_names_it_once_in_half_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    times = (0.0, 5.0, 29.0, 30.0, 35.0)
    log = LateLog(iter(times).__next__)
    seen = []
    for _ in times:
        log.look({"subscriptions": LATE})
        seen.append(len(caplog.records))
    assert seen == [1, 1, 1, 2, 2]
    assert "rank 1 on host-1" in caplog.messages[0]


def test_a_healthy_job_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    LateLog().look({"subscriptions": [reader(0, 0.0), reader(1, 0.0)]})
    assert caplog.records == []
