from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from typing import Any

import pytest

from streamrec.errors import MalformedPosition, OtherDataset, OtherOrder
from streamrec.plan.state.fingerprint import (
    Fingerprint,
    by_shard,
    digest,
    names_digest,
    relative_names,
)

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
