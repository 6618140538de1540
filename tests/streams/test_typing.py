"""What a type checker knows of a stream: mypy checks this file, ignores that are not needed too."""

from __future__ import annotations

from typing import Any, assert_type

import streamrec as sr


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


def test_settings_are_checked_before_they_run() -> None:
    def never_called() -> None:
        assert_type(sr.mix({"a": ("a", 0.5), "b": ("b", 0.5)}, batch_size=2), sr.Stream[sr.Batch])
        sr.open("a", batch_size=2, shufle=True)  # type: ignore[call-overload]
        sr.open("a", remainder="cut")  # type: ignore[call-overload]
        sr.open("a", engine="gpu")  # type: ignore[call-overload]
        sr.open(5)  # type: ignore[call-overload]
        sr.mix({"a": "a"}, exhausted="never")  # type: ignore[call-overload]

    assert callable(never_called)
