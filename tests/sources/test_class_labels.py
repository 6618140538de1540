from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.sources.class_labels import class_labels, join_labels
from tests.cli.support import streamrec

if TYPE_CHECKING:
    from pathlib import Path

PETS = {"_type": "ClassLabel", "names": ["cat", "dog"]}
NUMBERS = {"cat": 0, "dog": 1}


def schema(features: Any) -> Any:
    """Return the metadata of a schema as ``datasets`` writes them."""
    text = json.dumps({"info": {"features": features}}).encode()
    return SimpleNamespace(metadata={b"huggingface": text})


@pytest.mark.parametrize(
    ("features", "found"),
    [
        ({"label": PETS, "n": {"dtype": "int64", "_type": "Value"}}, {"label": NUMBERS}),
        ({"all": {"feature": PETS, "_type": "Sequence"}}, {"all": NUMBERS}),
        ({"all": {"feature": PETS, "_type": "List"}}, {"all": NUMBERS}),
        ({"all": [PETS]}, {"all": NUMBERS}),
        ({"outer": {"inner": PETS}}, {"outer/inner": NUMBERS}),
        ({"x": [], "y": None, "z": {"feature": None, "_type": "List"}}, {}),
        ({"x": {"_type": "ClassLabel"}}, {"x": {}}),
        ([], {}),
    ],
)
def test_features(features: Any, found: Any) -> None:
    assert class_labels(schema(features)) == found


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"info": 1}', b"\xff"])
def test_other_metadata(text: bytes) -> None:
    assert class_labels(SimpleNamespace(metadata={b"huggingface": text})) == {}
    assert class_labels(SimpleNamespace(metadata=None)) == {}


def test_files_that_differ(caplog: pytest.LogCaptureFixture) -> None:
    one, two = {"a": NUMBERS, "b": NUMBERS}, {"a": NUMBERS, "b": {"dog": 0, "cat": 1}}
    assert join_labels([one, two, {}]) == {"a": NUMBERS}
    assert "the class names of column 'b' differ between files" in caplog.text


def test_a_table_of_hugging_face(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    features = {"label": PETS, "other": PETS}
    table = pa.table({"label": [1, 0, 1], "other": [0, 0, 0]})
    metadata = schema(features).metadata
    parquet.write_table(table.replace_schema_metadata(metadata), tmp_path / "x.parquet")
    where = f"{tmp_path}/x.parquet", f"{tmp_path}/x.tfrecord"
    outcome = streamrec("write", *where, "--shards", "1", "--features", "label")
    assert outcome.code == 0, outcome
    assert sr.labels(f"{tmp_path}/x-*.tfrecord") == NUMBERS
