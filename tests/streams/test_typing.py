"""Type checkers know settings, batches and specs: mypy and pyright check this file.

Both refuse an ignore that is not needed, so each of them stands for an error that an editor shows.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_type, get_args

import numpy as np
import numpy.typing as npt
import pytest

import streamrec as sr
from streamrec.config.keywords import NumberName
from streamrec.formats.examples.dtypes import HELD_AS
from streamrec.formats.examples.image_spec import DenseColumn

if TYPE_CHECKING:
    from collections.abc import Callable
ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("basedpyright") is None, reason="basedpyright is not installed")
def test_pyright_agrees(tmp_path: Path) -> None:
    configuration = {
        "include": [__file__],
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "standard",
        "reportUnnecessaryTypeIgnoreComment": "error",
        # As in the strict mode. Without it, a mixed dict's values are unknown in a variable.
        "strictDictionaryInference": True,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(configuration))
    command = ["basedpyright", "--project", str(tmp_path), "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    assert report["generalDiagnostics"] == []


def for_checkers(function: Callable[..., None]) -> Callable[[], None]:
    """Return a test of a function that only type checkers read."""

    def test() -> None:
        assert callable(function)

    return test


def test_batches(tmp_path: Any) -> None:
    with sr.TFRecordWriter(tmp_path / "one") as writer:
        writer.write(sr.encode_example({"x": 1}))
    stream = sr.open(tmp_path / "one", {"x": sr.FixedLenFeature((), "int64")}, batch_size=1)
    with stream as entered:
        for batch in entered:
            assert_type(batch["x"], npt.NDArray[Any])
    for batch in sr.take(stream, 2):
        assert_type(batch["x"], npt.NDArray[Any])


def test_the_names_of_numbers_are_those_that_specs_take() -> None:
    assert {*get_args(NumberName)} == HELD_AS.keys() - {"bytes"}


@for_checkers
def test_specs(tensorflow: Any) -> None:
    assert_type(sr.FixedLenFeature((), "int64"), sr.FixedLenFeature[DenseColumn])
    assert_type(sr.FixedLenFeature(3, np.float32, [0, 0, 0]), sr.FixedLenFeature[DenseColumn])
    assert_type(sr.FixedLenFeature([2, 2], bool), sr.FixedLenFeature[DenseColumn])
    assert_type(sr.FixedLenFeature((4,), "complex64", raw=True), sr.FixedLenFeature[DenseColumn])
    assert_type(sr.FixedLenFeature((), bytes), sr.FixedLenFeature[sr.BytesColumn])
    assert_type(sr.FixedLenFeature((), "string"), sr.FixedLenFeature[sr.BytesColumn])
    assert_type(sr.FixedLenFeature((), tensorflow.int64), sr.FixedLenFeature[Any])
    assert_type(sr.FixedLenFeature((), np.dtype("int8")), sr.FixedLenFeature)
    assert_type(sr.FixedLenSequenceFeature((), float), sr.FixedLenSequenceFeature[DenseColumn])
    assert_type(sr.FixedLenSequenceFeature((), str), sr.FixedLenSequenceFeature[sr.BytesColumn])
    assert_type(sr.Image(), sr.Image[sr.Arrays])
    assert_type(sr.Image((8, 8)), sr.Image[DenseColumn])
    assert_type(sr.Image(resize=(8, 8), channels=1), sr.Image[DenseColumn])


@for_checkers
def test_wrong_specs() -> None:
    sr.FixedLenFeature((), "int64", default=1)  # type: ignore[call-overload]
    sr.FixedLenFeature((), "flaot32")  # type: ignore[call-overload]
    sr.FixedLenFeature((), "bytes", raw=True)  # type: ignore[call-overload]
    sr.VarLenFeature("int65")  # type: ignore[arg-type]
    sr.Image(channels="3")  # type: ignore[call-overload]
    sr.Pack(length="long")  # type: ignore[arg-type]


@for_checkers
def test_columns_of_one_type() -> None:
    numbers = {"x": sr.FixedLenFeature((), "int64"), "y": sr.Image((8, 8))}
    assert_type(sr.open("a", numbers, batch_size=1), sr.Stream[sr.Batch[npt.NDArray[Any]]])
    strings = {"x": sr.FixedLenFeature((), bytes)}
    assert_type(sr.open("a", strings, batch_size=1), sr.Stream[sr.Batch[sr.BytesColumn]])
    rows = {"x": sr.VarLenFeature("int64"), "y": sr.RaggedFeature(bytes)}
    assert_type(sr.open("a", rows, batch_size=1), sr.Stream[sr.Batch[sr.Ragged]])
    sparse = {"x": sr.SparseFeature("i", "v", "int64", 5)}
    assert_type(sr.open("a", sparse, batch_size=1), sr.Stream[sr.Batch[sr.Sparse]])
    pictures = {"x": sr.Image()}
    assert_type(sr.open("a", pictures, batch_size=1), sr.Stream[sr.Batch[sr.Arrays]])
    assert_type(sr.open("a", batch_size=1), sr.Stream[sr.Batch[sr.BytesColumn]])
    assert_type(sr.mix({"a": "a"}, numbers, batch_size=1), sr.Stream[sr.Batch[npt.NDArray[Any]]])
    assert_type(sr.mix({"a": "a"}, rows, batch_size=1), sr.Stream[sr.Batch[sr.Ragged]])
    assert_type(sr.mix({"a": "a"}, batch_size=1), sr.Stream[sr.Batch[sr.BytesColumn]])
    assert_type(sr.parse_example([b""], numbers), dict[str, npt.NDArray[Any]])
    assert_type(sr.parse_example([b""], strings), dict[str, sr.BytesColumn])


@for_checkers
def test_columns_of_any_type(plain: dict[str, Any], spec: Any) -> None:
    mixed = {"x": sr.FixedLenFeature((), "int64"), "y": sr.VarLenFeature("int64")}
    assert_type(sr.open("a", mixed, batch_size=1), sr.Stream[sr.Batch])
    assert_type(sr.mix({"a": "a"}, mixed, batch_size=1), sr.Stream[sr.Batch])
    assert_type(sr.parse_example([b""], mixed), dict[str, Any])
    assert_type(sr.open("a", (mixed, None), batch_size=1), sr.Stream[sr.Batch])
    assert_type(sr.open("a", "infer", batch_size=1), sr.Stream[sr.Batch])
    assert_type(sr.open("a", sr.infer_features("a"), batch_size=1), sr.Stream[sr.Batch])
    for batch in sr.open("a", plain, batch_size=1):
        assert_type(batch["x"], Any)
    for batch in sr.open("a", {"x": spec}, batch_size=1):
        assert_type(batch["x"], Any)


@for_checkers
def test_functions_may_change_columns() -> None:
    numbers = {"x": sr.FixedLenFeature((), "int64")}
    assert_type(sr.open("a", numbers, batch_size=1, map=dict), sr.Stream[sr.Batch])
    assert_type(sr.open("a", numbers, batch_size=1, transform=dict), sr.Stream[sr.Batch])
    rows = {"x": sr.VarLenFeature("int64")}
    assert_type(sr.open("a", rows, batch_size=1, pack=sr.Pack(8)), sr.Stream[sr.Batch])


@for_checkers
def test_functions_may_take_a_generator() -> None:
    def augment(batch: sr.Batch, rng: np.random.Generator) -> dict[str, Any]:
        return {"x": rng.permutation(batch["x"])}

    def by_keyword(columns: dict[str, Any], *, rng: np.random.Generator) -> dict[str, Any]:
        return {**columns, "noise": rng.random(1)}

    def another(columns: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        return {**columns, "noise": generator.random(1)}

    sr.open("a", batch_size=1, transform=augment, map=by_keyword)
    sr.open("a", batch_size=1, filter=lambda columns, rng: rng.random(1) < columns["x"])
    sr.open("a", batch_size=1, transform=lambda batch: {**batch}, map=dict)
    sr.open("a", batch_size=1, map=another)  # type: ignore[arg-type]


@for_checkers
def test_single_records() -> None:
    assert_type(sr.open("a"), sr.Stream[Any])
    assert_type(sr.open("a", {"x": sr.Image()}), sr.Stream[Any])


@for_checkers
def test_wrong_use_of_columns(batch: sr.Batch[npt.NDArray[Any]]) -> None:
    batch["x"].to_list()  # type: ignore[attr-defined]
    batch["x"] = np.zeros(1)  # type: ignore[index]
    for raw in sr.open("a", batch_size=1):
        raw["records"].mean()  # type: ignore[attr-defined]
    sr.parse_example([b""], {"x": sr.VarLenFeature(int)})["x"].mean()  # type: ignore[attr-defined]
    anything: sr.Batch = batch
    anything["x"].whatever()


@for_checkers
def test_settings_are_checked_before_they_run(tensorflow: Any) -> None:
    sr.open("a", batch_size=2, shufle=True)  # type: ignore[call-overload]
    sr.open("a", remainder="cut")  # type: ignore[call-overload]
    sr.open("a", engine="gpu")  # type: ignore[call-overload]
    sr.open(5)  # type: ignore[call-overload]
    sr.mix({"a": "a"}, exhausted="never")  # type: ignore[call-overload]
    sr.open("a", dtypes="int32")
    sr.open("a", dtypes=[np.int32, "bfloat16"])
    sr.open("a", dtypes={"x": np.uint8, "y": float, "z": tensorflow.int32})
    sr.open("a", dtypes="int33")  # type: ignore[call-overload]
    sr.open("a", dtypes={"x": "int33"})  # type: ignore[dict-item]
    sr.open("a", dtypes="bytes")  # type: ignore[call-overload]
