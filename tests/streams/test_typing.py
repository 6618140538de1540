"""Type checkers know settings, batches and specs: mypy and pyright check this file.

Both refuse an ignore that is not needed, so each of them stands for an error that an editor shows.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, assert_type

import pytest

import streamrec as sr

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("basedpyright") is None, reason="basedpyright is not installed")
def test_pyright_agrees(tmp_path: Path) -> None:
    configuration = {
        "include": [__file__],
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "standard",
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(configuration))
    command = ["basedpyright", "--project", str(tmp_path), "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    assert report["generalDiagnostics"] == []


def test_batches(tmp_path: Any) -> None:
    with sr.TFRecordWriter(tmp_path / "one") as writer:
        writer.write(sr.encode_example({"x": 1}))
    stream = sr.open(tmp_path / "one", {"x": sr.FixedLenFeature((), "int64")}, batch_size=1)
    assert_type(stream, sr.Stream[sr.Batch])
    with stream as entered:
        for batch in entered:
            assert_type(batch, sr.Batch)
    for batch in sr.take(stream, 2):
        assert_type(batch, sr.Batch)
    assert_type(sr.open("a"), sr.Stream[Any])


def test_specs() -> None:
    def never_called() -> None:
        sr.FixedLenFeature((), "int64", default=1)  # type: ignore[call-arg]
        sr.Image(channels="3")  # type: ignore[arg-type]
        sr.Pack(length="long")  # type: ignore[arg-type]

    assert callable(never_called)


def test_settings_are_checked_before_they_run() -> None:
    def never_called() -> None:
        assert_type(sr.mix({"a": ("a", 0.5), "b": ("b", 0.5)}, batch_size=2), sr.Stream[sr.Batch])
        sr.open("a", batch_size=2, shufle=True)  # type: ignore[call-overload]
        sr.open("a", remainder="cut")  # type: ignore[call-overload]
        sr.open("a", engine="gpu")  # type: ignore[call-overload]
        sr.open(5)  # type: ignore[call-overload]
        sr.mix({"a": "a"}, exhausted="never")  # type: ignore[call-overload]

    assert callable(never_called)
