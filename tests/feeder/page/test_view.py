from __future__ import annotations

from streamrec.feeder.page.view import MOST_NAME, MOST_ROWS, view_of
from tests.feeder.page.snapshots import sample, snapshot


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
