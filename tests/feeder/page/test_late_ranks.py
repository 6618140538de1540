from __future__ import annotations

from typing import Any

import pytest

from streamrec.feeder.page.late_ranks import LateLog, late_ranks
from streamrec.feeder.page.samples import LATELY
from streamrec.flow.stages import TABLE


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
