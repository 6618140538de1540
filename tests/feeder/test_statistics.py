from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamrec.feeder.statistics import MOST_ERRORS, Statistics
from tests.feeder.fake_dataset import FakeDataset

if TYPE_CHECKING:
    from streamrec.feeder.subscription import Subscription


def subscribed(statistics: Statistics, rank: int = 0) -> Any:
    facts = {"rank": rank, "world_size": 2, "batch_size": 8, "peer": "10.0.0.5"}
    return statistics.subscribed("train", **facts)


def run_of(statistics: Statistics, subscription: Subscription, batches: int) -> None:
    dataset = FakeDataset()
    dataset.counts = True
    run = dataset.run(rank=0, world_size=1, batch_size=8, position=None)
    subscription.begin(run)
    for step in range(batches):
        run._step = step + 1
        statistics.sent(subscription, step + 1, 8, 1000)


def test_a_subscription_is_shown_while_it_lasts() -> None:
    statistics = Statistics()
    with subscribed(statistics, rank=1) as subscription:
        run_of(statistics, subscription, 3)
        (shown,) = statistics.snapshot()["subscriptions"]
    assert shown["waits"].keys() == {"client"}
    assert shown["since"] >= statistics.started
    expected = {"id": 1, "dataset": "train", "rank": 1, "world_size": 2, "batch_size": 8}
    counts = {"peer": "10.0.0.5", "step": 3, "batches": 3, "records": 24, "bytes": 3000}
    assert shown.items() >= {**expected, **counts}.items()
    assert statistics.snapshot()["subscriptions"] == []


def test_totals_never_go_back() -> None:
    statistics = Statistics()
    seen = [0]

    def look() -> None:
        seen.append(statistics.snapshot()["datasets"]["train"]["fetch"]["requests"])

    for batches in (3, 5):
        with subscribed(statistics) as subscription:
            run_of(statistics, subscription, batches)
            look()
            subscription.finish()
            look()
            run_of(statistics, subscription, 1)
            look()
        look()
    assert seen == [0, 3, 3, 4, 4, 9, 9, 10, 10]


def test_the_last_errors_are_kept() -> None:
    statistics = Statistics()
    for number in range(MOST_ERRORS + 5):
        statistics.failed("CorruptRecord", str(number))
    snapshot = statistics.snapshot()
    assert [error["message"] for error in snapshot["errors"]][-1] == str(MOST_ERRORS + 4)
    assert len(snapshot["errors"]) == MOST_ERRORS
