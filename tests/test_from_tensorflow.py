"""Holds docs/how-to/from-tensorflow.md against TensorFlow: both sides of each of its lines."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from google.protobuf.message import DecodeError, Message

import streamrec as sr
from streamrec.datasets.sample_pictures import sample_pictures
from streamrec.streams.stream import Take
from tests.cli.support import streamrec
from tests.formats.beside_tensorflow import IN_ONE_WORKER, assert_equal, tf
from tests.pages import DOCS, ROOT, Block, Row, blocks, reading_in_threads, rows_of_code, run_block
from tests.sources.folders import picture_folder
from tests.sources.texts import vocabulary_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    IN_ONE_WORKER,
    # Keras gives these for TensorFlow's own datasets, too.
    pytest.mark.filterwarnings("ignore:.*(shuffle=True. was passed|ran out of data)"),
]

PAGE = DOCS / "how-to" / "from-tensorflow.md"
ROWS = rows_of_code(PAGE)
BLOCKS = [block for block in blocks(PAGE) if block.info.startswith(("python", "sh"))]
PAIRS = list(zip(BLOCKS[::2], BLOCKS[1::2], strict=True))
DATA = (bytes, list, np.ndarray)
IRIS = ROOT / "tests" / "data" / "iris.csv"
ANNOTATIONS = [
    {"id": 11, "image_id": 1, "category_id": 1, "bbox": [85.0, 0.0, 340.0, 512.0], "area": 98e3},
    {"id": 12, "image_id": 2, "category_id": 17, "bbox": [65.5, 0.0, 385.0, 300.0], "area": 83e3},
    {"id": 13, "image_id": 3, "category_id": 47, "bbox": [150.0, 60.0, 300.0, 250.0], "area": 5e4},
]
"""In COCO's form: a person, a cat and a cup in the package's photographs."""
ENTRY = '"'
"""A cell that begins so is an entry of the specs."""


class Outcome(NamedTuple):
    assigned: set[str]
    """The names that a block assigns."""
    written: list[bytes]
    """The records of the shards that it writes, as TensorFlow reads them."""


class Side:
    """One side of the page: a directory and a namespace of its own."""

    def __init__(self, parse: str, directory: Path) -> None:
        self._parse = parse
        self._directory = directory
        self.names: dict[str, Any] = {}

    def run(self, block: Block) -> Outcome:
        """Run a block."""
        names, shards = dict(self.names), self._shards()
        with contextlib.chdir(self._directory):
            if block.info.startswith("sh"):
                run_streamrec(block)
            else:
                run_block(block, PAGE, self.names)
        assigned = {name for name, value in self.names.items() if names.get(name) is not value}
        written = sorted(self._shards() - shards)
        return Outcome(assigned, [record for path in written for record in records_of(path)])

    def _shards(self) -> set[Path]:
        return set(self._directory.rglob("*.tfrec*")) - set(self._directory.rglob("*.streamrec-*"))

    def value(self, cell: str) -> Any:
        """Return what a cell gives, read to its end."""
        code = f"{self._parse}(records, {{{cell}}})" if cell.startswith(ENTRY) else cell
        with contextlib.chdir(self._directory):
            value = eval(code, self.names)
            datasets = (tf.data.Dataset, tf.distribute.DistributedDataset)
            lazy = (sr.Stream, Take, itertools.islice, itertools.chain, *datasets)
            return list(value) if isinstance(value, lazy) else value


class Sides:
    """Both, after the page's blocks."""

    def __init__(self, theirs: Path, ours: Path) -> None:
        for directory in (theirs, ours):
            lay_out(directory)
        self.theirs = Side("tf.io.parse_example", theirs)
        self.ours = Side("sr.parse_example", ours)
        self.outcomes = [(self.theirs.run(a), self.ours.run(b)) for a, b in PAIRS]


def lay_out(directory: Path) -> None:
    """Write what the page's blocks read: photographs, notes of what they show, and a table."""
    picture_folder(directory / "pictures")
    (directory / "images").mkdir()
    for number, picture in enumerate(sample_pictures(), 1):
        (directory / "images" / f"{number:012}.jpg").write_bytes(picture)
    (directory / "annotations.json").write_text(json.dumps({"annotations": ANNOTATIONS}))
    (directory / "iris.csv").write_bytes(IRIS.read_bytes())
    (directory / "sample_text.txt").write_bytes(PAGE.read_bytes())
    vocabulary_file(directory)


def words_of(block: Block) -> list[str]:
    """Return the words of a block's command, which may go on behind backslashes."""
    return shlex.split(block.body.replace("\\\n", ""))


def run_streamrec(block: Block) -> None:
    """Run a block's command if it is ours: the scripts that people know are not here."""
    program, *arguments = words_of(block)
    if program == "streamrec":
        outcome = streamrec(*arguments)
        assert outcome.code == 0, outcome


def records_of(path: Path) -> list[bytes]:
    """Return a shard's records, as TensorFlow reads it."""
    compression = "GZIP" if path.suffix == ".gz" else ""
    return list(tf.data.TFRecordDataset(str(path), compression).as_numpy_iterator())


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    with reading_in_threads():
        yield Sides(tmp_path_factory.mktemp("theirs"), tmp_path_factory.mktemp("ours"))


def compare(ours: Any, theirs: Any) -> None:
    """Check that both are the same: data, or mappings and sequences of them."""
    if isinstance(theirs, Message):
        theirs, ours = (each.SerializeToString(deterministic=True) for each in (theirs, ours))
    if isinstance(theirs, tf.data.Dataset):
        theirs = list(theirs.as_numpy_iterator())
    if isinstance(theirs, dict):
        assert dict(ours).keys() == theirs.keys()
        for name in theirs:
            compare(ours[name], theirs[name])
    elif isinstance(theirs, tuple | list):
        assert len(ours) == len(theirs)
        for got, expected in zip(ours, theirs, strict=True):
            compare(got, expected)
    elif isinstance(ours, tf.SparseTensor):
        for part in ("indices", "values", "dense_shape"):
            compare(getattr(ours, part).numpy(), getattr(theirs, part).numpy())
    elif isinstance(ours, str):
        assert ours == os.path.normpath(tf.convert_to_tensor(theirs).numpy().decode())
    elif isinstance(ours, np.ndarray) and isinstance(theirs, np.ndarray):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype
    elif isinstance(ours, int):
        assert ours == theirs
    elif isinstance(ours, float):
        assert ours == pytest.approx(theirs)
    elif isinstance(ours, bytes):
        assert meaning(ours) == meaning(tf.convert_to_tensor(theirs).numpy())
    else:
        assert_equal(ours, theirs if tf.is_tensor(theirs) else tf.convert_to_tensor(theirs))


def meaning(data: bytes) -> Any:
    """Return what neither an encoder nor the order of an Example's features decides."""
    if data.startswith((b"\x89PNG", b"\xff\xd8")):
        return tf.io.decode_image(data).numpy().tolist()
    with contextlib.suppress(DecodeError):
        return tf.train.Example.FromString(data)
    return data


def canonical(record: bytes) -> bytes:
    """Return an Example with its features in the order of their names, any other record as is."""
    with contextlib.suppress(DecodeError):
        return bytes(tf.train.Example.FromString(record).SerializeToString(deterministic=True))
    return record


def labels(items: list[Any]) -> list[int]:
    """Return the labels of records, or of batches of them, in the order of numbers."""
    return sorted(label for item in items for label in np.ravel(item["label"]).tolist())


@pytest.mark.parametrize("row", ROWS, ids=[row.theirs for row in ROWS])
def test_a_row(row: Row, sides: Sides) -> None:
    theirs, ours = sides.theirs.value(row.theirs), sides.ours.value(row.ours)
    if "in another order" in row.remark:
        assert labels(ours) == labels(theirs)
        assert labels(ours)
    else:
        compare(ours, theirs)


BATCHES_OF_EPOCHS = [
    row for row in ROWS if {"repeat", "batch"} <= set(re.findall(r"\w+", row.theirs))
]


@pytest.mark.parametrize("row", BATCHES_OF_EPOCHS, ids=[row.theirs for row in BATCHES_OF_EPOCHS])
def test_batches_of_epochs_are_as_long(row: Row, sides: Sides) -> None:
    theirs, ours = sides.theirs.value(row.theirs), sides.ours.value(row.ours)
    assert [np.size(batch["label"]) for batch in ours] == [np.size(b["label"]) for b in theirs]


def test_batches_cross_epochs_in_one_order_alone() -> None:
    assert [re.findall("batch|repeat", row.theirs) for row in BATCHES_OF_EPOCHS] == [
        ["repeat", "batch"],
        ["batch", "repeat"],
    ]


def test_a_shape_in_raw_bytes_that_tensorflow_wrote(sides: Sides) -> None:
    with contextlib.chdir(sides.theirs._directory):
        parts, reshaped = sides.ours.names["parts"], sides.ours.names["reshaped"]
        with sr.open("shaped.tfrecord", parts, batch_size=3, map=reshaped) as stream:
            (images,) = [batch["image"] for batch in stream]
    assert [image.shape for image in images] == [(2, 4, 3), (3, 4, 3), (5, 4, 3)]
    assert all(image.ravel().tolist() == list(range(image.size)) for image in images)


@pytest.mark.parametrize("number", range(len(PAIRS)), ids=[f"line {a.line}" for a, _ in PAIRS])
def test_both_blocks_of_a_pair_assign_and_write_the_same(number: int, sides: Sides) -> None:
    pair = PAIRS[number]
    assert pair[0].info in ('python title="TensorFlow"', 'sh title="TensorFlow"')
    assert "TensorFlow" not in pair[1].info
    theirs, ours = sides.outcomes[number]
    both = theirs.assigned & ours.assigned
    data = {name for name in both if isinstance(sides.ours.names[name], DATA)}
    for name in data:
        compare(sides.ours.names[name], sides.theirs.names[name])
    writes = ".TFRecordWriter" in pair[0].body
    compares = data or writes or pair[0].info.startswith("sh")
    assert compares or (is_used(theirs.assigned, "theirs") and is_used(ours.assigned, "ours"))
    if writes:
        expected = Counter(map(canonical, theirs.written))
        assert expected
        assert Counter(map(canonical, ours.written)) == expected


def is_used(names: set[str], side: str) -> bool:
    """Return whether the rows, which are compared, use a name that a block assigns."""
    code = " ".join(getattr(row, side) for row in ROWS)
    return any(re.search(rf"\b{name}\b", code) for name in names)


def test_resizing_is_tensorflow_s_with_antialias() -> None:
    picture = sample_pictures()[0]
    size = (300, 300)  # more than half of its own, so the JPEG is decoded whole
    ours = sr.parse_example([sr.encode_example({"x": picture})], {"x": sr.Image(resize=size)})["x"]
    whole = tf.io.decode_jpeg(picture)
    smooth, plain = (tf.image.resize(whole, size, antialias=each).numpy() for each in (True, False))
    assert np.abs(ours[0] - smooth).max() <= 1
    assert np.abs(ours[0] - plain).mean() > 1


def test_a_command_has_the_options_of_the_script() -> None:
    ((script, command),) = [pair for pair in PAIRS if pair[0].info.startswith("sh")]
    given = dict(word[2:].split("=") for word in words_of(script)[2:])
    files = {given.pop("input_file"), given.pop("output_file")}
    words = words_of(command)
    assert files <= set(words)
    for name, value in given.items():
        place = words.index(f"--{name.replace('_', '-')}")
        assert value in ("True", words[place + 1])


def test_text_has_the_features_that_bert_reads(sides: Sides) -> None:
    (number,) = [n for n, (script, _) in enumerate(PAIRS) if script.info.startswith("sh")]
    sizes = {"masked_lm_weights": (20, "float32"), "next_sentence_labels": (1, "int64")}
    sizes |= dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), (20, "int64"))
    sizes |= dict.fromkeys(("input_ids", "input_mask", "segment_ids"), (128, "int64"))
    specs = {name: tf.io.FixedLenFeature([size], dtype) for name, (size, dtype) in sizes.items()}
    written = sides.outcomes[number][1].written
    found = tf.io.parse_example(written, specs)
    assert len(found["input_ids"]) > 100
    assert set(tf.train.Example.FromString(written[0]).features.feature) == set(specs)
    assert set(found["next_sentence_labels"].numpy().ravel()) == {0, 1}


def test_every_row_of_two_sides_is_one_of_code() -> None:
    lines = PAGE.read_text().splitlines()
    ends = ("| TensorFlow | streamrec |", "| TensorFlow | streamrec | |")
    tables = [i for i, line in enumerate(lines) if line in ends]
    counts = [len(list(itertools.takewhile(bool, lines[i + 2 :]))) for i in tables]
    assert sum(counts) == len(ROWS) > 40


CALLS = """
TFRecordWriter TFRecordOptions Example Feature Features BytesList FloatList Int64List
SequenceExample FeatureList FeatureLists parse_example parse_single_example parse_sequence_example
parse_single_sequence_example FixedLenFeature FixedLenSequenceFeature VarLenFeature RaggedFeature
SparseFeature serialize_tensor parse_tensor decode_raw decode_jpeg decode_png decode_image
list_files TFRecordDataset compression_type interleave shuffle repeat shard map batch
drop_remainder padded_batch cache prefetch take skip filter Options AUTOTUNE Checkpoint
_bytes_feature serialize_example num_samples save snapshot
num_parallel_reads tf_record_iterator decode_and_crop_jpeg cast decode_tiff block_length
experimental_distribute_dataset InputContext as_numpy_iterator sample_from_datasets
"""


@pytest.mark.parametrize("call", CALLS.split())
def test_every_call_of_the_tutorials_is_there(call: str) -> None:
    assert call in PAGE.read_text()
