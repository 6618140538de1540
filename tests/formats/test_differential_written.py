"""What is written here is read by TensorFlow, with the same values, where it is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.errors import WrongFeatureType
from streamrec.formats.examples.coerce import as_feature
from tests.formats.beside_tensorflow import IN_ONE_WORKER, drawn, tf
from tests.formats.examples.plain_mappings import MAPPINGS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [IN_ONE_WORKER, pytest.mark.both_kernels]


@drawn
@given(features=MAPPINGS)
def test_a_mapping_is_the_message_that_tensorflow_writes(features: dict[str, Any]) -> None:
    try:
        ours = sr.encode_example(features)
    except WrongFeatureType:
        return
    theirs = tf.train.Example.FromString(ours)
    found = theirs.features.feature
    assert set(found) == set(features)
    # By feature, since protobuf's order of a map's entries is not by name in all versions.
    for name, value in features.items():
        assert found[name].SerializeToString() == as_feature(value).SerializeToString()


@pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
@pytest.mark.parametrize("how", [{"shards": 3}, {"shard_bytes": 700}], ids=str)
def test_a_dataset(tmp_path: Path, how: dict[str, Any], compression: str | None) -> None:
    rows = 40
    columns: dict[str, Any] = {
        "id": np.arange(rows),
        "vector": np.random.default_rng(1).random((rows, 3), np.float32),
        "words": [[b"x" * k for k in range(n % 4)] for n in range(rows)],
    }
    with sr.ShardedWriter(tmp_path / "x", compression=compression, **how) as writer:
        writer.write_many({name: column[:30] for name, column in columns.items()})
        for row in range(30, rows):
            writer.write({name: column[row] for name, column in columns.items()})
    paths = sorted(map(str, tmp_path.glob("x-?????-of-?????")))
    kind = (compression or "").upper()
    records = list(tf.data.TFRecordDataset(paths, kind).as_numpy_iterator())
    found = tf.io.parse_example(
        records,
        {
            "id": tf.io.FixedLenFeature((), tf.int64),
            "vector": tf.io.FixedLenFeature((3,), tf.float32),
            "words": tf.io.RaggedFeature(tf.string),
        },
    )
    order = np.argsort(found["id"].numpy())
    assert found["id"].numpy()[order].tolist() == list(range(rows))
    assert (found["vector"].numpy()[order] == columns["vector"]).all()
    words = found["words"].to_list()
    assert [words[n] for n in order] == columns["words"]


@drawn
@given(values=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), max_size=5))
def test_columns_of_integers(values: list[list[int]]) -> None:
    records = sr.encode_examples({"x": values}).to_list()
    theirs = [tf.train.Example.FromString(record) for record in records]
    assert [list(one.features.feature["x"].int64_list.value) for one in theirs] == values
