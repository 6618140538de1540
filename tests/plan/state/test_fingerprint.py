from __future__ import annotations

from dataclasses import fields, replace
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ConfigError, MalformedPosition, OtherDataset, OtherOrder
from streamrec.plan.state.fingerprint import (
    Fingerprint,
    RankSummary,
    by_shard,
    check_agreement,
    digest,
    disagreements,
    names_digest,
    relative_names,
    settings_of,
)
from tests.plan.state.test_position import FINGERPRINT

ENDS = {"epochs": 1, "steps_per_epoch": 100, "remainder": "drop"}
OTHER: dict[str, Any] = {
    "names": "fedcba9876543210", "shards": 101, "order": "other", "lanes": 24, "shuffle": False,
    "seed": 8, "shuffle_window": 1 << 20, "global_batch": None, "stages": "filter app:long",
    "mix": "from 0: web 1; repeat", "mix_changes": '[[5, {"web": 2.0}]]',
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
    words = {"names": "the names of the shards", "mix_changes": "the changes of weights"}
    named = words.get(name, name)
    was = getattr(FINGERPRINT, name)
    told = f"{named} is {was!r} in processes 0, 1, 3 and {OTHER[name]!r} in process 2"
    assert fault.removesuffix(settings_of(name)) == told


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


NOW = Fingerprint(
    names="0" * 16,
    shards=1000,
    order=by_shard(3),
    lanes=48,
    shuffle=True,
    seed=1,
    shuffle_window=256 << 20,
    global_batch=64,
)


@pytest.mark.parametrize("saved", [replace(NOW, order=by_shard(1), lanes=96), replace(NOW, seed=2)])
def test_a_refusal_says_what_serves(saved: Fingerprint) -> None:
    with pytest.raises(OtherOrder, match="restore these settings, or begin without the state"):
        NOW.check(saved)


def test_other_shards_are_told_before_another_order() -> None:
    changes: list[Any] = [{"shards": 999, "seed": 2}, {"names": "1" * 16}]
    for change in changes:
        with pytest.raises(OtherDataset, match=r"belongs to \d+ shards other than the 1000"):
            NOW.check(replace(NOW, **change))
    NOW.check(replace(NOW))


@pytest.mark.parametrize(
    ("more", "written"),
    [
        ({}, set()),
        ({"stages": "map"}, {"stages"}),
        ({"stages": "s", "mix": "m"}, {"stages", "mix"}),
    ],
)
def test_what_is_empty_is_not_written(more: Any, written: set[str]) -> None:
    fingerprint = replace(NOW, **more)
    data = fingerprint.to_dict()
    assert data.keys() & {"stages", "mix"} == written
    assert Fingerprint.from_dict(data) == fingerprint


@pytest.mark.parametrize("name", ["shards", "lanes", "seed", "shuffle_window", "global_batch"])
def test_numbers_have_63_bits(name: str) -> None:
    for number in (0, (1 << 63) - 1):
        assert getattr(Fingerprint.from_dict(NOW.to_dict() | {name: number}), name) == number
    for wrong in (-1, 1 << 63, True, 1.0, "1"):
        with pytest.raises(MalformedPosition, match=f"the fingerprint's '{name}' is not of type"):
            Fingerprint.from_dict(NOW.to_dict() | {name: wrong})


@pytest.mark.parametrize(
    ("name", "wrong"), [("names", 1), ("names", None), ("shuffle", 1), ("seed", None), ("mix", 0)]
)
def test_fields_of_another_type(name: str, wrong: Any) -> None:
    with pytest.raises(MalformedPosition, match=f"'{name}' is not of type"):
        Fingerprint.from_dict(NOW.to_dict() | {name: wrong})
    without = Fingerprint.from_dict(NOW.to_dict() | {"global_batch": None})
    assert without.global_batch is None


def test_an_error_names_the_settings_behind_a_field() -> None:
    said = r"global_batch was 30 and is 64 \(it is made of batch_size x world_size\); restore"
    with pytest.raises(OtherOrder, match=said):
        NOW.check(replace(NOW, global_batch=30))


def test_other_fields() -> None:
    others: list[Any] = [NOW.to_dict() | {"more": 1}, {"seed": 1}, [], None, "x"]
    for wrong in others:
        with pytest.raises(MalformedPosition, match="does not have the fields names, shards"):
            Fingerprint.from_dict(wrong)


@pytest.mark.parametrize(
    ("order", "mix", "by_record", "has_sources"),
    [
        ("shard", "", False, False),
        ("shard, 3 at once", "", False, True),
        ("record:1234", "", True, False),
        ("record, even windows:1234", "", True, False),
        ("record, as kept:1234", "", False, False),
        ("record:1234", "a, b", True, True),
    ],
)
def test_what_an_order_says(order: str, mix: str, by_record: bool, has_sources: bool) -> None:
    fingerprint = replace(NOW, order=order, mix=mix)
    assert (fingerprint.by_record, fingerprint.has_sources) == (by_record, has_sources)


def test_the_order_by_shard() -> None:
    assert [by_shard(number) for number in (1, 2)] == ["shard", "shard, 2 at once"]


@pytest.mark.parametrize(
    ("urls", "names"),
    [
        (["s3://b/d/x"], ["x"]),
        (["s3://b/d/x", "s3://b/d/y"], ["x", "y"]),
        (["s3://b/d/x", "s3://b/e/x"], ["d/x", "e/x"]),
        (["s3://b/d/x", "s3://b/d/e/x"], ["x", "e/x"]),
        (["s3://b/x", "s3://c/x"], ["b/x", "c/x"]),
        (["x", "d/x"], ["x", "d/x"]),
    ],
)
def test_names_are_relative(urls: list[str], names: list[str]) -> None:
    assert relative_names(urls) == names
    assert names_digest(urls) == digest("\n".join(names))


def test_a_digest_is_of_the_bytes() -> None:
    assert digest("a\udcff") == blake2b(b"a\xff", digest_size=8).hexdigest()
    assert len(NOW.digest) == 16
    assert NOW.digest == replace(NOW).digest != replace(NOW, seed=2).digest


def relative_parts(urls: list[str]) -> list[str]:
    """Return the names below the common directory, found part by part."""
    parts = [url.split("/") for url in urls]
    depth = min(map(len, parts)) - 1
    shared = next((i for i in range(depth) if len({part[i] for part in parts}) > 1), depth)
    return ["/".join(part[shared:]) for part in parts]


@given(st.lists(st.text("ab/", max_size=8), min_size=1, max_size=5))
def test_relative_names_are_those_of_whole_parts(urls: list[str]) -> None:
    assert relative_names(urls) == relative_parts(urls)
