from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.fleet import (
    BATCH,
    RANKS,
    RECORDS,
    job,
    list_source,
    measure,
    name_of,
    plan_step,
    write_index,
)

if TYPE_CHECKING:
    from pathlib import Path

SHARDS = 12_000
"""Enough for a step of all ranks."""


@pytest.mark.parametrize("shuffle", [True, pytest.param(False, marks=pytest.mark.night)])
def test_all_ranks_of_a_step_have_records_of_their_own(tmp_path: Path, shuffle: bool) -> None:
    assert SHARDS * RECORDS > RANKS * BATCH
    index = write_index(tmp_path, SHARDS)
    found = measure(plan_step, index, shuffle)
    assert found["found"] == RANKS * BATCH
    assert found["cpu_seconds"] > 0


def test_an_index_of_shards_that_are_not_there_names_them(tmp_path: Path) -> None:
    assert list_source(write_index(tmp_path, 50)) == (50, 1)
    assert name_of(7, 50) == "train-0000007-of-0000050.tfrecord"


@pytest.mark.night  # two feeders start
def test_a_job_runs_as_planned() -> None:
    rows = {row["what"]: row for row in job(ranks=4)}
    assert rows["clients of a feeder"]["run"] == 2
    requests = rows["requests of an epoch"]
    assert requests["run"] == pytest.approx(requests["plan"], rel=0.1)
    assert rows["CPU of the feeders, s"]["run"] > 0
