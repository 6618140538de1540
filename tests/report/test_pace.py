from __future__ import annotations

from typing import Any

import pytest

from streamrec.flow.stages import RESOURCES, TABLE
from streamrec.flow.timings import Timings
from streamrec.report.pace import (
    StreamPace,
    describe_late,
    describe_silent,
    late_rank,
    pace_between,
    values_of,
)


def statistics(**changes: Any) -> dict[str, Any]:
    """Return what a stream tells of itself."""
    return {
        "batches": 10,
        "records": 80,
        "step": 10,
        "seconds_blocked": 1.0,
        "requests": 5,
        "bytes_read": 1000,
        "waits": {"first_byte": 1.0, "client": 9.0},
        "concurrency_seconds": {"buffers": 1.0},
        "timings": {},
        **changes,
    }


def times(*first_bytes: float) -> dict[str, Any]:
    timings = Timings()
    for seconds in first_bytes:
        timings.observe("s3", "read", seconds, seconds)
    return timings.to_dict()


def test_rates_are_those_of_the_period() -> None:
    before = statistics()
    pace = pace_between(before, statistics(batches=30, records=240, bytes_read=6000), 10.0)
    values = values_of(pace)
    assert values["batches_per_second"] == 2
    assert values["records_per_second"] == 16
    assert values["bytes_per_second"] == 500
    assert values["requests_per_second"] == values["retries_per_second"] == 0


def test_a_stream_that_had_not_begun_counts_from_0() -> None:
    own = {"batches": 0, "records": 0, "step": 0, "seconds_blocked": 0.0}
    pace = pace_between(own, statistics(), 10.0)
    assert values_of(pace)["requests_per_second"] == 0.5
    assert pace.kept_back == {"buffers": 1.0}
    assert values_of(pace_between(own, own, 10.0))["waited"] == 0


def test_the_next_run_counts_from_0() -> None:
    before = statistics(requests=500, timings=times(1.0, 1.0, 1.0), waits={"client": 90.0})
    pace = pace_between(before, statistics(timings=times(0.02)), 10.0)
    assert values_of(pace)["requests_per_second"] == 0.5
    assert pace.first_byte_p99 == pytest.approx(0.025, rel=0.02)


def test_the_loop_says_how_long_it_waited_and_the_run_for_what() -> None:
    waits = {"first_byte": 10.0, "body": 3.0, "decode": 0.0, "client": 9.0}
    now = statistics(seconds_blocked=5.0, waits=waits)
    pace = pace_between(statistics(), now, 10.0)
    assert pace.waited == pytest.approx(0.4)
    assert pace.waits == pytest.approx({"first_byte": 0.3, "body": 0.1, "client": 0.6})
    values = values_of(pace)
    assert values["wait/first_byte"] == pytest.approx(0.3)
    assert "wait/client" not in values


def test_a_wait_of_which_the_run_has_not_told() -> None:
    pace = pace_between(statistics(), statistics(seconds_blocked=11.0), 10.0)
    assert pace.waited == 1
    assert pace.waits == {"client": 0}


def test_first_bytes_are_those_of_the_period() -> None:
    before, now = times(9.0), times(9.0, *[0.02] * 98, 2.0)
    pace = pace_between(statistics(timings=before), statistics(timings=now), 10.0)
    assert pace.first_byte_p50 == pytest.approx(0.018, rel=0.05)
    assert pace.first_byte_p99 is not None
    assert pace.first_byte_p99 > 1
    assert values_of(pace)["first_byte_p99"] == pace.first_byte_p99
    none = pace_between(statistics(timings=now), statistics(timings=now), 10.0)
    assert not {"first_byte_p50", "first_byte_p99"} & values_of(none).keys()


def test_a_loop_that_goes_back_one_batch_gives_no_rate() -> None:
    pace = pace_between(statistics(), statistics(batches=9, records=72), 10.0)
    assert values_of(pace)["records_per_second"] == 0


SHARD = "s3://bucket/train-00017"


def pace(waited: float, **changes: Any) -> StreamPace:
    values = {"seconds": 30.0, "waits": {"first_byte": waited, "client": 1 - waited}, **changes}
    return StreamPace(waited=waited, **values)


def paces(*waited: float) -> dict[int, StreamPace]:
    return {rank: pace(part) for rank, part in enumerate(waited)}


@pytest.mark.parametrize(
    ("waited", "late"),
    [
        ([0.02, 0.41, 0.03, 0.0], 1),
        ([0.02, 0.41], 1),
        ([0.5, 0.9, 0.6, 0.55], 1),
        ([0.02, 0.03, 0.11, 0.03], None),
        ([0.5, 0.5, 0.55, 0.45], None),
        ([0.9], None),
        ([], None),
    ],
)
def test_the_rank_that_waits_much_longer_than_the_others_is_late(
    waited: list[float], late: int | None
) -> None:
    assert late_rank(paces(*waited)) == late


def test_the_sentence_names_rank_stage_and_shard() -> None:
    ranks = paces(0.03, 0.03, 0.41)
    ranks[2] = pace(0.41, shard=SHARD, first_byte_p99=4.1)
    assert describe_late(2, "host-b", ranks) == (
        "rank 2 on host-b waited 41% of the last 30 s, the others 3%: "
        f"first bytes from {SHARD}, p99 4.1 s"
    )


@pytest.mark.parametrize("stage", ["decode", "transform", "scan", "wire", "list"])
def test_the_cause_is_in_the_words_of_the_table(stage: str) -> None:
    ranks = {0: pace(0.0), 1: pace(0.4, waits={stage: 0.4, "client": 0.6}, shard=SHARD)}
    line = describe_late(1, "host-b", ranks)
    assert line.endswith(f": {TABLE[stage].awaited}")


def test_a_store_that_throttles_is_named() -> None:
    counts = {"requests": 100, "throttled": 90}
    ranks = {0: pace(0.0), 1: pace(0.4, shard=SHARD, counts=counts)}
    meanwhile = RESOURCES["throttling"].meanwhile
    assert describe_late(1, "host-b", ranks).endswith(f"from {SHARD}; meanwhile {meanwhile}")


@pytest.mark.parametrize("waits", [{"client": 0.6}, {}, {"of a later version": 0.4}])
def test_a_wait_of_which_nothing_is_known(waits: dict[str, float]) -> None:
    line = describe_late(1, "host-b", {0: pace(0.0), 1: pace(0.4, waits=waits)})
    assert line.endswith(": for which stage is not known yet")


def test_a_foreign_name_stays_on_one_line() -> None:
    assert "\n" not in describe_silent(1, "host\nrank 2 on host-c", 45.0)
    assert describe_silent(1, "host-b", 45.0).startswith(
        "rank 1 on host-b has reported nothing for 45 s"
    )
