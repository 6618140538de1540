from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.feeder.page.view import MOST_NAME, MOST_ROWS, Samples, path_of, verdict_of, view_of
from streamrec.flow.stages import RESOURCES, STAGES, TABLE
from streamrec.flow.timings import BOUNDS
from streamrec.plan.reading.concurrency import Limit
from tests.feeder.page.snapshots import sample, snapshot


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
    assert now == {"bytes_per_second": 500.0, "records_per_second": 5.0, "stalled": 0.25}


def test_then_they_are_those_of_the_last_interval_or_two() -> None:
    clock = Clock()
    samples = Samples(clock=clock)
    began = clock.now
    for sent in (0, 10**6, 2 * 10**6):
        samples.take(snapshot_at(clock, subscriptions=[subscription(began, sent, body=clock.now)]))
        clock.now += 5
    now = rates(samples, clock, subscription(began, 2 * 10**6, body=clock.now - 5))
    assert now == {"bytes_per_second": 1e5, "records_per_second": 1e3, "stalled": 0.5}


def test_a_subscription_with_the_number_of_another_is_another() -> None:
    clock = Clock()
    samples = Samples(clock=clock)
    samples.take(snapshot_at(clock, subscriptions=[subscription(clock.now, 10**6, body=9.0)]))
    clock.now += 5
    began, clock.now = clock.now, clock.now + 1
    assert rates(samples, clock, subscription(began, 100))["bytes_per_second"] == 100.0


AWAITED = {name: stage.awaited for name, stage in TABLE.items() if name != "client"}
MEANWHILE = {one.cause: one.meanwhile for one in RESOURCES.values() if one.cause is not None}


@pytest.mark.parametrize("stage", AWAITED)
def test_the_largest_wait_is_named(stage: str) -> None:
    waits = {**dict.fromkeys(STAGES, 0.01), stage: 2.39, "client": 7.5}
    path = path_of(snapshot(samples=[sample(waits=waits)]))
    assert verdict_of(path) == f"Clients wait for 25% of the time, longest for {AWAITED[stage]}."
    (limit,) = [each for each in path if each.is_limit]
    assert stage in limit.waits
    assert sum(each.share for each in path) == pytest.approx(1)


def test_the_longest_stage_is_named_not_the_one_of_the_fullest_box() -> None:
    waits = {"first_byte": 2.0, "body": 2.0, "decode": 3.0, "client": 3.0}
    path = path_of(snapshot(samples=[sample(waits=waits)]))
    assert verdict_of(path) == f"Clients wait for 70% of the time, longest for {AWAITED['decode']}."


@pytest.mark.parametrize("cause", MEANWHILE)
def test_what_keeps_requests_few_is_told_where_clients_wait_for_the_store(cause: Limit) -> None:
    waits, kept_back = {"body": 6.0, "client": 4.0}, {cause: 3.0, Limit.GROWING: 2.0}
    path = path_of(snapshot(samples=[sample(waits=waits, kept_back=kept_back)]))
    assert verdict_of(path).endswith(f"{AWAITED['body']}. Meanwhile {MEANWHILE[cause]}.")


@pytest.mark.parametrize(
    ("waits", "kept_back"),
    [
        ({"decode": 6.0, "client": 4.0}, {Limit.BUFFERS: 5.0}),
        ({"body": 6.0, "client": 4.0}, {Limit.BUFFERS: 2.0, Limit.GROWING: 3.0}),
        ({"body": 6.0, "client": 4.0}, {Limit.SATISFIED: 5.0}),
    ],
)
def test_what_keeps_requests_few_is_not_told_of_others(
    waits: dict[str, float], kept_back: dict[str, float]
) -> None:
    path = path_of(snapshot(samples=[sample(waits=waits, kept_back=kept_back)]))
    assert "Meanwhile" not in verdict_of(path)


def test_a_feeder_that_is_fast_enough() -> None:
    path = path_of(snapshot(samples=[sample(waits={"client": 9.5, "wire": 0.5})]))
    assert verdict_of(path) == "The trainers are the bottleneck, as it should be."
    assert [stage.name for stage in path if stage.is_limit] == ["client"]


def test_it_is_the_last_minute_s() -> None:
    old = [sample(waits={"body": 100.0}) for _ in range(100)]
    new = [sample(waits={"client": 1.0}) for _ in range(12)]
    shares = {stage.name: stage.share for stage in path_of(snapshot(samples=old + new))}
    assert (shares["client"], shares["fetch"]) == (1.0, 0.0)


def test_before_the_first_sample_it_is_all_there_is() -> None:
    found = snapshot()
    found["datasets"]["train"]["waits"] = {"decode": 1.0}
    assert (
        verdict_of(path_of(found))
        == f"Clients wait for 100% of the time, longest for {AWAITED['decode']}."
    )


def test_nobody_reads() -> None:
    path = path_of(snapshot(samples=[sample()], clients=0))
    assert verdict_of(path) == "Nobody reads now."
    assert not any(stage.is_limit for stage in path)


def test_fills() -> None:
    found = snapshot(samples=[sample()])
    found["datasets"]["train"]["now"] |= {
        "in_flight": 12,
        "concurrency": 48,
        "batches_ready": 3,
        "bytes_ready": 3 << 20,
        "bytes_in_memory": 64 << 20,
        "bytes_budgeted": 128 << 20,
    }
    fills = {stage.name: stage.fill for stage in path_of(found)}
    texts = {name: (fill.text, fill.part) for name, fill in fills.items() if fill}
    assert texts == {
        "list": ("1 of 1 datasets open", 1.0),
        "fetch": ("12 of 48 requests", 0.25),
        "order": ("64.0 MiB of 128.0 MiB buffers", 0.5),
        "queue": ("3 batches, 3.0 MiB", None),
        "wire": ("57.0 MB/s", None),
        "client": ("1 subscription", None),
    }


def test_a_box_of_several_stages_says_which() -> None:
    waits = {"first_byte": 3.0, "body": 1.0, "client": 4.0, "filter": 2.0}
    details = {s.name: s.detail for s in path_of(snapshot(samples=[sample(waits=waits)]))}
    assert details["fetch"] == "first_byte 30%, body 10%"
    assert (details["order"], details["client"]) == ("filter 20%", "")


def test_what_is_shown_of_a_feeder() -> None:
    view = view_of(snapshot(samples=[sample(first_byte_p50=None), sample()]))
    assert (view.state, view.is_ready) == ("ready", True)
    shown = {"Throughput": "57.0 MB/s", "Records": "2,500/s", "First byte, p50": "48 ms"}
    assert dict(view.facts) == {**shown, "Clients": "0"}
    first_byte = view.series[2]
    assert first_byte.values == [None, 0.048]
    assert first_byte.texts == ["08:00:00 none", "08:00:00 48 ms"]
    (dataset,), (each,) = view.datasets, view.subscriptions
    assert (dataset["name"], dataset["state"], dataset["clients"]) == ("train", "open", "1")
    assert dataset["sent"] == "8 records, 1.0 kB"
    assert each.items() >= {"rank": "0 of 1", "step": "41", "peer": "10.0.0.5"}.items()
    assert each["rate"] == dataset["rate"] != "0 bytes/s"


def test_workers() -> None:
    assert view_of(snapshot()).workers == "1 worker"
    assert view_of(snapshot(workers=3, workers_lost=1)).workers == "3 workers (1 lost)"


def test_memory() -> None:
    assert view_of(snapshot()).memory.text == "0 B in use"
    budget = {"used": 1 << 20, "lent": 2 << 20, "limit": 4 << 20}
    text = "1.0 MiB in use, 2.0 MiB lent of 4.0 MiB"
    assert view_of(snapshot(budget=budget)).memory.text == text


def test_an_obstacle_and_the_last_errors() -> None:
    errors = [
        {"time": 0, "type": "StoreUnavailable", "message": "down", "dataset": None, "rank": None},
        {"time": 1, "type": "CorruptRecord", "message": "bad", "dataset": "train", "rank": 0},
    ]
    view = view_of(snapshot(obstacle="the feeder is draining", errors=errors))
    assert (view.state, view.is_ready) == ("not ready: the feeder is draining", False)
    assert [error["type"] for error in view.errors] == ["CorruptRecord", "StoreUnavailable"]
    assert [error["rank"] for error in view.errors] == ["0", ""]


def test_rows_and_names_are_bounded() -> None:
    view = view_of(snapshot("n" * 1000, clients=MOST_ROWS + 5))
    assert (len(view.subscriptions), view.more_subscriptions) == (MOST_ROWS, 5)
    ranks = [each["rank"] for each in view.subscriptions]
    assert ranks == [f"{rank} of {MOST_ROWS + 5}" for rank in range(MOST_ROWS)]
    assert len(view.datasets[0]["name"]) == MOST_NAME
    assert (len(view.datasets), view.more_datasets) == (1, 0)
