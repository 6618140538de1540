from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.config import DatasetSettings
from streamrec.datasets.found_records import find_values
from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = 30
PEOPLE = ("ann", "bob", "zoë")


def example(number: int) -> dict[str, Any]:
    """Return a record; each tenth one has no user, and each other one two tags."""
    values: dict[str, Any] = {
        "id": number,
        "tags": [number % 4, 7] if number % 2 else [],
        "score": float(number),
    }
    return values if number % 10 == 9 else {**values, "user": PEOPLE[number % 3]}


@pytest.fixture
def source(tmp_path: Path) -> str:
    with sr.ShardedWriter(tmp_path / "train.tfrecord", shards=3) as writer:
        for number in range(RECORDS):
            writer.write(example(number))
    return str(tmp_path / "train-*.tfrecord")


def has(number: int, feature: str, wanted: set[Any]) -> bool:
    value = example(number).get(feature, [])
    return bool(wanted.intersection(value if isinstance(value, list) else [value]))


@pytest.mark.parametrize(
    ("feature", "values"),
    [("id", {3, 16, 29}), ("user", {"bob", "zoë"}), ("tags", {1, 3, 7}), ("id", {99})],
)
def test_the_records_with_these_values_are_found(
    source: str, feature: str, values: set[Any]
) -> None:
    texts = [str(value) for value in values]
    found, wanted, missing = find_values(DatasetSettings(source=source), feature, texts)
    assert (wanted, missing) == (len(values), len(values & {99}))
    ids = {
        (shard, record): number
        for shard in sr.shards(source)
        for record, number in enumerate(numbers_in(shard))
    }
    places = [(one.shard, one.record) for one in found]
    assert places == sorted(set(places))
    numbers = {ids[place] for place in places}
    assert numbers == {number for number in range(RECORDS) if has(number, feature, values)}
    assert {value for one in found for value in one.values} == values - {99}


def test_texts_of_one_number_are_one_value(source: str) -> None:
    # The type may be given, as for a feature that the first records do not have.
    found = find_values(DatasetSettings(source=source), "id:int64", ["7", "007", "+7", "99", "099"])
    assert (len(found.records), found.wanted, found.missing) == (1, 2, 1)


def numbers_in(shard: str) -> list[int]:
    with sr.open(
        shard, {"id": sr.FixedLenFeature((), "int64")}, batch_size=RECORDS, engine="thread"
    ) as stream:
        return [number for batch in stream for number in batch["id"].tolist()]


@pytest.mark.parametrize(
    ("feature", "value", "words"),
    [
        ("name", "1", "have no values of 'name'; they have id, score, tags, user"),
        ("score", "1", "no values of int64 or bytes"),
        ("id", "ann", "'ann' is not an integer"),
    ],
)
def test_wrong_features_and_values_are_refused(
    source: str, feature: str, value: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        find_values(DatasetSettings(source=source), feature, [value])
