from __future__ import annotations

from typing import Any

import pytest

from streamrec.flow.stages import RESOURCES, TABLE
from streamrec.report.late import describe_late, describe_silent, late_rank
from streamrec.report.pace import StreamPace

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
