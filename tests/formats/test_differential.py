"""Messages and frames beside TensorFlow's own, on drawn input, where TensorFlow is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.formats.examples.example import Example, SequenceExample, encode_example
from streamrec.formats.shards.tfrecord import FrameScanner, frame
from tests.formats.beside_tensorflow import ANY_CONTENT, IN_ONE_WORKER, drawn, example, tf

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [IN_ONE_WORKER, pytest.mark.both_kernels]

RECORD = st.dictionaries(st.sampled_from("abcü"), ANY_CONTENT)


@drawn
@given(record=RECORD)
def test_messages_are_the_same_on_the_wire(record: dict[str, Any]) -> None:
    theirs = tf.train.Example.FromString(example(record))
    ours = Example.FromString(theirs.SerializeToString())
    wire = ours.SerializeToString(deterministic=True)
    assert wire == theirs.SerializeToString(deterministic=True)
    assert encode_example(dict(theirs.features.feature)) == wire


def test_sequence_examples_are_the_same_on_the_wire() -> None:
    theirs = tf.train.SequenceExample()
    theirs.context.feature["id"].int64_list.value.append(3)
    theirs.feature_lists.feature_list["x"].feature.add().float_list.value.append(0.5)
    ours = SequenceExample.FromString(theirs.SerializeToString())
    assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(
        deterministic=True
    )


@pytest.mark.parametrize(
    "value", [3, -1, [1, 2], True, 0.5, [0.5, 2], b"x", "ü", np.arange(3), np.float64(0.1)]
)
def test_tensors_encode_as_their_values(value: Any) -> None:
    assert encode_example({"x": tf.constant(value)}) == encode_example({"x": value})


@drawn
@given(records=st.lists(st.binary(max_size=50), max_size=6))
def test_tensorflow_reads_our_frames_and_we_its(
    records: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory: Path = tmp_path_factory.mktemp("frames")
    ours, theirs = directory / "ours", directory / "theirs"
    ours.write_bytes(b"".join(map(frame, records)))
    with tf.io.TFRecordWriter(str(theirs)) as writer:
        for record in records:
            writer.write(record)
    assert ours.read_bytes() == theirs.read_bytes()
    assert list(tf.data.TFRecordDataset(str(ours)).as_numpy_iterator()) == records
    scanner = FrameScanner(url=str(theirs))
    blocks, _ = scanner.scan(np.frombuffer(theirs.read_bytes(), np.uint8), more=False)
    scanner.finish()
    assert sum(map(len, blocks)) == len(records)
