from __future__ import annotations

import pytest

from streamrec.feeder.page.samples import MOST_NAME
from streamrec.feeder.page.view import (
    MOST_ROWS,
    path_of,
    verdict_of,
    view_of,
    view_of_fleet,
)
from streamrec.flow.stages import RESOURCES, STAGES, TABLE
from streamrec.plan.reading.concurrency import Limit
from tests.feeder.page.snapshots import sample, snapshot

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


def test_a_fleet_is_compared_over_all_its_feeders() -> None:
    waits = {"decode": 12.0, "client": 18.0}
    lately = {"stalled": 0.4, "seconds": 30.0, "waits": waits}
    idle = {"stalled": 0.0, "seconds": 30.0, "waits": {"client": 30.0}}
    found = {}
    for rank, rates in enumerate((lately, idle)):
        one = snapshot(clients=1)
        [reader] = one["subscriptions"]
        reader |= {"rank": rank, "world_size": 2, "peer": "local", "lately": rates}
        found[f"host-{rank}:7071"] = one
    fleet = view_of_fleet({**found, "host-2:7071": "no status"})
    assert [where for where, _ in fleet.feeders] == [f"host-{rank}:7071" for rank in range(3)]
    assert fleet.feeders[2][1] == "no status"
    [line] = fleet.late
    assert line.startswith("train: rank 0 on host-0:7071 waited 40% of the last 30 s")
