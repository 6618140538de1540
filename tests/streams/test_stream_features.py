"""Every kind of column, from a shard to the training loop, whoever reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.formats.shards.tfrecord import frame
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.config.keywords import Engine

pytestmark = pytest.mark.both_kernels

CONTEXT = {
    "id": sr.FixedLenFeature((), "int32"),
    "pixels": sr.FixedLenFeature((2,), "uint8", raw=True),
    "hot": sr.SparseFeature("i", "v", "bool", 4),
}
SEQUENCE = {
    "x": sr.FixedLenSequenceFeature((), "float16", allow_missing=True),
    "words": sr.VarLenFeature(bytes),
    "pairs": sr.RaggedFeature("int8", "n", [sr.RaggedFeature.UniformRowLength(2)]),
}


def record(number: int) -> bytes:
    message = sr.SequenceExample()
    context = message.context.feature
    context["id"].int64_list.value.append(number)
    context["pixels"].bytes_list.value.append(bytes([number, 255]))
    context["i"].int64_list.value.append(number % 4)
    context["v"].int64_list.value.append(1)
    lists = message.feature_lists.feature_list
    for step in range(number % 3):
        lists["x"].feature.add().float_list.value.append(step / 2)
        lists["words"].feature.add().bytes_list.value.extend([b"w"] * step)
        lists["n"].feature.add().int64_list.value.extend([number, step])
    return bytes(message.SerializeToString())


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "sequences.tfrecord"
    path.write_bytes(b"".join(frame(record(number)) for number in range(6)))
    return str(path)


def check(batch: Any) -> None:
    assert batch["id"].tolist() == [0, 1, 2, 3, 4, 5]
    assert batch["id"].dtype == np.int32
    assert batch["pixels"].tolist() == [[number, 255] for number in range(6)]
    assert batch["hot"].to_dense().argmax(axis=1).tolist() == [0, 1, 2, 3, 0, 1]
    assert batch["x"].tolist() == [[0, 0], [0, 0], [0, 0.5]] * 2
    assert batch["x"].dtype == np.float16
    assert batch["x/length"].tolist() == [0, 1, 2] * 2
    assert batch["words"].to_list() == [[], [[]], [[], [b"w"]]] * 2
    assert batch["pairs"].to_list() == [
        [[[number, step]] for step in range(number % 3)] for number in range(6)
    ]


@pytest.mark.parametrize("engine", ["process", "thread"])
def test_batches_of_a_plain_for(source: str, engine: Engine) -> None:
    with sr.open(source, (CONTEXT, SEQUENCE), batch_size=6, engine=engine) as stream:
        (batch,) = stream
    check(batch)


@asynchronous
async def test_batches_of_an_async_for(source: str) -> None:
    async with sr.open(source, (CONTEXT, SEQUENCE), batch_size=6) as stream:
        (batch,) = [batch async for batch in stream]
    check(batch)


@pytest.mark.parametrize("engine", ["process", "thread"])
def test_single_records(source: str, engine: Engine) -> None:
    with sr.open(source, (CONTEXT, SEQUENCE), engine=engine) as stream:
        records = list(stream)
    assert [len(row["x"]) for row in records] == [0, 1, 2] * 2
    assert records[5]["x"].tolist() == [0, 0.5]
    assert records[5]["words"].to_list() == [[], [b"w"]]
    assert records[5]["hot"].to_dense().tolist() == [False, True, False, False]
    assert records[5]["x/length"] == 2


def test_bfloat16(source: str) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    features = (None, {"x": sr.FixedLenSequenceFeature((), "bfloat16", allow_missing=True)})
    with sr.open(source, features, batch_size=6) as stream:
        (batch,) = stream
    assert batch["x"].dtype == bfloat16
    assert batch["x"].tolist()[2] == [0, 0.5]


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (({"a": sr.VarLenFeature(int)}, {"a": sr.VarLenFeature(int)}), "give a column of this"),
        (({}, {"a": sr.FixedLenFeature((), int)}), "is a feature list"),
        ({"a": sr.FixedLenFeature((), int), "b": sr.RaggedFeature(int, "a")}, "is needed as"),
        ([{}], "a pair"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_read(features: Any, words: str) -> None:
    with pytest.raises(sr.ConfigError, match=words):
        sr.open("no-such-shard", features)


def test_sequence_examples_are_not_inferred(source: str) -> None:
    stream = sr.open(source, "infer", batch_size=2, engine="thread")
    with pytest.raises(sr.ConfigError, match=r"a pair \(context, sequence\)"):
        next(stream)
