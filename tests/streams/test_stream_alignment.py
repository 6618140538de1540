"""Every column of a batch begins at a multiple of 64 bytes, whoever reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from tests.by_day import at_night
from tests.formats.examples.test_alignment import unaligned

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.config.keywords import Engine

FEATURES: dict[str, Any] = {
    "id": sr.FixedLenFeature((), "int64"),
    "name": sr.FixedLenFeature((), bytes),
    "tokens": sr.VarLenFeature("int64"),
    "x": sr.FixedLenFeature((3,), "float32"),
    "large": sr.FixedLenFeature((3000,), "int64"),
}


@pytest.fixture
def source(tmp_path: Path) -> str:
    with sr.TFRecordWriter(tmp_path / "one.tfrecord") as writer:
        for i in range(50):
            example = {"id": i, "name": f"{i}", "tokens": [*range(i % 7 + 1)], "x": [0.5] * 3}
            writer.write({**example, "large": [i] * 3000})
    return str(tmp_path / "*.tfrecord")


SETTINGS: list[dict[str, Any]] = [
    {"features": FEATURES},
    {"features": None},
    {"features": FEATURES, "dtypes": ["int16", "float16"]},
    {"features": FEATURES, "filter": "tests.streams.test_stream_alignment:odd"},
    {"features": {"tokens": FEATURES["tokens"]}, "pack": sr.Pack(length=8)},
    {"features": FEATURES, "remainder": "pad", "epochs": 1},
]


@pytest.mark.parametrize(
    ("settings", "engine"),
    [
        *[(settings, "thread") for settings in SETTINGS],
        *[(settings, "process") for settings in SETTINGS[:2]],
        *[at_night(settings, "process") for settings in SETTINGS[2:]],
    ],
)
def test_columns_are_aligned(source: str, settings: Any, engine: Engine) -> None:
    batches = list(sr.open(source, batch_size=7, engine=engine, **settings))
    assert batches
    assert [unaligned(batch) for batch in batches] == [[]] * len(batches)


def odd(columns: Any) -> Any:
    return np.asarray(columns["id"]) % 2 == 1
