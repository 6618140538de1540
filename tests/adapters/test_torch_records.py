"""Single records for a trainer, and the batches that are collated of them."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.adapters.huggingface import as_dataset, collate
from streamrec.errors import ConfigError, WrongFeatureType
from tests.adapters.torch_shards import FEATURES, write_examples
from tests.support import IN_TORCHS_WORKER, has_torch, torch

if TYPE_CHECKING:
    from streamrec.adapters.torch.records import Records

pytestmark = [has_torch, IN_TORCHS_WORKER]
RECORDS = 22


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_examples(tmp_path_factory.mktemp("examples"), RECORDS)


def opened(source: str, features: Any = FEATURES, **values: Any) -> sr.Stream:
    order = {"shuffle": True, "shuffle_window": 300, "lanes": 2}
    return sr.open(source, features, engine="thread", **{**order, **values})


def dataset_of(source: str, dtype: Any = None, **values: Any) -> Records:
    return as_dataset(opened(source, **values), dtype)


def test_a_record_is_what_the_stream_gives_as_tensors(source: str) -> None:
    for plain, record in zip(opened(source), dataset_of(source), strict=True):
        assert [*record] == [*plain]
        assert len(record) == len(plain)
        assert record["id"].item() == plain["id"]
        assert record["x"].tolist() == plain["x"].tolist()
        assert record["tokens"].tolist() == plain["tokens"].tolist()
        assert record["name"] == plain["name"]


def test_pickled_it_is_a_dict_without_its_batch(source: str) -> None:
    record = next(iter(dataset_of(source)))
    copied = pickle.loads(pickle.dumps(record))
    assert type(copied) is dict
    assert copied.keys() == record.keys()
    assert torch.equal(copied["x"], record["x"])
    assert repr(record) == repr(copied)


@pytest.mark.parametrize("size", [1, 3, 4, RECORDS])
def test_collated_they_are_the_same_values_in_order(source: str, size: int) -> None:
    plain, records = [*opened(source)], [*dataset_of(source)]
    for first in range(0, RECORDS, size):
        part = plain[first : first + size]
        batch = collate(records[first : first + size])
        assert batch["id"].tolist() == [int(record["id"]) for record in part]
        assert batch["x"].tolist() == [record["x"].tolist() for record in part]
        assert batch["name"] == [record["name"] for record in part]
        hot = [row.to_dense().tolist() for row in batch["hot"]]
        assert hot == [record["hot"].to_dense().tolist() for record in part]
        tokens = [row.tolist() for row in batch["tokens"]]
        assert tokens == [record["tokens"].tolist() for record in part]


def test_records_in_any_order_are_collated(source: str) -> None:
    records = [*dataset_of(source)]
    mixed = [*records[9:3:-2], records[0], *records[5:8], records[0]]
    assert collate(mixed)["id"].tolist() == [record["id"].item() for record in mixed]


def test_those_that_follow_each_other_are_not_copied(source: str) -> None:
    records = [*dataset_of(source, lanes=1, shuffle=False)]
    batch, first = records[-1].row
    together = records[-1 - first :]
    assert len(together) > 2
    collated = collate(together[1:])["x"]
    assert collated.data_ptr() == batch["x"][1:].ctypes.data
    assert collated.shape == (first, 2)


def test_cast(source: str) -> None:
    records = [*dataset_of(source, {"x": "bfloat16", "id": "int32"})]
    batch = collate(records[:3])
    assert (batch["x"].dtype, batch["id"].dtype) == (torch.bfloat16, torch.int32)
    assert records[0]["x"].dtype == torch.bfloat16


def test_a_cast_of_no_feature_is_refused_at_the_first_record(source: str) -> None:
    with pytest.raises(ConfigError, match="dtype names the feature 'y'"):
        next(iter(dataset_of(source, {"y": "int32"})))


def test_a_cast_that_loses_is_refused(source: str) -> None:
    records = [*dataset_of(source, {"x": "int32"})]
    with pytest.raises(WrongFeatureType, match="without loss"):
        collate(records)


def test_what_is_no_record_is_not_collated(source: str) -> None:
    raw: Any = [*as_dataset(opened(source, None))]
    assert isinstance(raw[0], bytes)
    with pytest.raises(ConfigError, match="open the stream with features"):
        collate(raw)


def test_the_state_is_behind_the_record(source: str) -> None:
    whole = [record["id"].item() for record in dataset_of(source)]
    for k in (1, 5, 21):
        dataset = dataset_of(source)
        records = iter(dataset)
        assert [next(records)["id"].item() for _ in range(k)] == whole[:k]
        resumed = dataset_of(source)
        resumed.load_state_dict(dataset.state_dict())
        assert [record["id"].item() for record in resumed] == whole[k:]
