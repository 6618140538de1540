from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ConfigError
from streamrec.plan.state.agreement import RankSummary, check_agreement, disagreements
from streamrec.plan.state.position import Fingerprint
from tests.plan.state.test_position import FINGERPRINT

ENDS = {"epochs": 1, "steps_per_epoch": 100, "remainder": "drop"}
OTHER: dict[str, Any] = {
    "names": "fedcba9876543210", "shards": 101, "order": "other", "lanes": 24, "shuffle": False,
    "seed": 8, "shuffle_window": 1 << 20, "global_batch": None, "stages": "filter app:long",
    "mix": "from 0: web 1; repeat",
}  # fmt: skip


def summaries(world_size: int, processes: int | None = None) -> list[RankSummary]:
    return [
        RankSummary(FINGERPRINT, process % world_size, world_size, 7, ENDS)
        for process in range(processes or world_size)
    ]


def changed(summaries: list[RankSummary], process: int, **fingerprint: Any) -> list[RankSummary]:
    summaries[process] = replace(
        summaries[process], fingerprint=replace(summaries[process].fingerprint, **fingerprint)
    )
    return summaries


@given(st.integers(1, 9), st.integers(1, 3))
def test_ranks_of_one_stream_agree(world_size: int, share: int) -> None:
    """Each rank may be several processes: those of a model-parallel group."""
    assert disagreements(summaries(world_size, world_size * share)) == []


@pytest.mark.parametrize("name", [field.name for field in fields(Fingerprint)])
def test_every_field_of_the_fingerprint_is_named(name: str) -> None:
    (fault,) = disagreements(changed(summaries(4), 2, **{name: OTHER[name]}))
    named = "the names of the shards" if name == "names" else name
    was = getattr(FINGERPRINT, name)
    assert fault == f"{named} is {was!r} in processes 0, 1, 3 and {OTHER[name]!r} in process 2"


@pytest.mark.parametrize("name", list(ENDS))
def test_every_end_is_named(name: str) -> None:
    four = summaries(4)
    four[3] = replace(four[3], ends={**ENDS, name: None})
    (fault,) = disagreements(four)
    assert fault == f"{name} is {ENDS[name]!r} in processes 0, 1, 2 and None in process 3"


def test_several_faults_are_told_together() -> None:
    with pytest.raises(ConfigError) as caught:
        check_agreement(changed(changed(summaries(2), 1, seed=9), 0, lanes=6))
    text = str(caught.value)
    assert text.startswith("the 2 processes would not read one stream: lanes is ")
    assert "seed is 7 in process 0 and 9 in process 1" in text
    assert text.endswith("give all of them the same settings, and each its own rank")


def test_many_processes_are_counted() -> None:
    (fault,) = disagreements(changed(summaries(100), 41, seed=9))
    assert fault == "seed is 7 in 99 processes and 9 in process 41"


@pytest.mark.parametrize(
    ("ranks", "match"),
    [
        ([0, 0, 2, 3], "nobody reads rank 1 of 4"),
        ([0, 0, 0, 0], "nobody reads rank 1, 2, 3 of 4"),
        ([0, 1, 2, 3, 3], "rank 3 is read by 2 processes and rank 2 by 1"),
    ],
)
def test_ranks_that_are_not_shared_alike(ranks: list[int], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        check_agreement([replace(summaries(4)[0], rank=rank) for rank in ranks])


def test_a_long_list_of_missing_ranks_is_cut() -> None:
    (fault,) = disagreements(summaries(20, 1) * 2)
    assert fault == "nobody reads rank 1, 2, 3, 4, 5, 6, 7, 8, ... of 20"


@pytest.mark.parametrize(("field", "value"), [("world_size", 2), ("step", 8)])
def test_where_they_begin(field: str, value: int) -> None:
    four = summaries(4)
    four[1] = replace(four[1], **{field: value})  # type: ignore[arg-type]
    assert any(fault.startswith(f"{field} is ") for fault in disagreements(four))


def test_round_trip_through_json() -> None:
    for summary in summaries(3):
        assert RankSummary.from_json(summary.to_json()) == summary


def test_settings_that_are_lists_can_be_compared() -> None:
    two = summaries(2)
    assert not disagreements([replace(c, ends={**ENDS, "epochs": [1, 2]}) for c in two])
