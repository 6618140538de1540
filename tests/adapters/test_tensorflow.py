"""Datasets of tf.data, beside what TensorFlow itself makes of the same shards."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.errors import ConfigError
from tests.formats.beside_tensorflow import IN_ONE_WORKER, tf
from tests.pipeline.small_datasets import write_index
from tests.support import Deferred

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

pytestmark = [IN_ONE_WORKER, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
adapter: Any = Deferred("streamrec.adapters.tensorflow")

RECORDS = 20
DTYPES: Any = ("uint8", "int16", "uint32", "uint64", "float16", "float64", "bool", "complex64")
IDS = {"id": sr.FixedLenFeature((), "int64")}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two shards, which are read one after the other where there is one lane."""
    directory = tmp_path_factory.mktemp("tensorflow")
    for shard in range(2):
        with sr.TFRecordWriter(f"{directory}/part-{shard}.tfrecord") as writer:
            for number in range(RECORDS // 2):
                writer.write(record(RECORDS // 2 * shard + number))
    write_index(f"{directory}/part-*.tfrecord", 500)
    return f"{directory}/part-*.tfrecord"


def record(number: int) -> dict[str, Any]:
    raw = {dtype: np.array([number % 2, 1]).astype(dtype).tobytes() for dtype in DTYPES}
    return {
        "id": number,
        "x": [float(number), -1.0],
        "names": [b"n" * step for step in range(number % 3)],
        "two": [b"a" * number, b"b"],
        "steps": list(range(number % 4)),
        "less": list(range(number % 4)),
        "more": list(range(number % 4)),
        "place": [number % 5],
        "value": [float(number)],
        "lengths": [number % 4],
        "picture": sr.encode_png(np.full((2, 3, 3), number, np.uint8)),
        **raw,
    }


def opened(source: str, features: Any = IDS, **settings: Any) -> sr.Stream:
    settings = {"batch_size": 4, "lanes": 1, "engine": "thread", **settings}
    return sr.open(source, features, **settings)


def shuffled(source: str, **settings: Any) -> sr.Stream:
    return opened(source, shuffle=True, shuffle_window=300, lanes=2, **settings)


def ids(elements: Iterable[Any]) -> list[list[int]]:
    return [element["id"].numpy().tolist() for element in elements]


def rows(batches: Iterable[Any]) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def theirs(source: str, features: Any) -> Any:
    records = tf.data.TFRecordDataset(sorted(tf.io.gfile.glob(source)))
    return records.batch(4).map(lambda serialized: tf.io.parse_example(serialized, features))


def values(tensor: Any) -> Any:
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.to_list()
    if isinstance(tensor, tf.SparseTensor):
        return [
            part.numpy().tolist() for part in (tensor.indices, tensor.values, tensor.dense_shape)
        ]
    return tensor.numpy().tolist()


class TestValues:
    def features(self) -> dict[str, Any]:
        return {
            "id": tf.io.FixedLenFeature((), tf.int64),
            "x": tf.io.FixedLenFeature((2,), tf.float32),
            "picture": tf.io.FixedLenFeature((), tf.string),
            "two": tf.io.FixedLenFeature((2,), tf.string),
            "names": tf.io.VarLenFeature(tf.string),
            "steps": tf.io.FixedLenSequenceFeature((), tf.int64, allow_missing=True),
            "ragged": tf.io.RaggedFeature(tf.int64, "less"),
            "nested": tf.io.RaggedFeature(
                tf.int64, "more", [tf.io.RaggedFeature.RowLengths("lengths")], tf.int64
            ),
            "sparse": tf.io.SparseFeature("place", "value", tf.float32, 5),
        }

    def test_they_are_those_of_parse_example(self, source: str) -> None:
        features = self.features()
        ours, expected = adapter.as_dataset(opened(source, features)), theirs(source, features)
        assert ours.element_spec == expected.element_spec
        elements = list(zip(ours, expected, strict=True))
        assert len(elements) == RECORDS // 4
        for element, other in elements:
            assert element.keys() == other.keys()
            for name, tensor in other.items():
                assert values(element[name]) == values(tensor), name

    def test_every_dtype(self, source: str) -> None:
        features = {dtype: sr.FixedLenFeature((2,), dtype, raw=True) for dtype in DTYPES}
        batches = list(opened(source, features))
        for element, batch in zip(
            adapter.as_dataset(opened(source, features)), batches, strict=True
        ):
            for dtype in DTYPES:
                assert element[dtype].dtype == tf.as_dtype(dtype)
                assert element[dtype].shape == (4, 2)
                np.testing.assert_array_equal(element[dtype].numpy(), batch[dtype])

    @pytest.mark.parametrize("engine", ["thread", "process"])
    def test_dense_numbers_are_not_copied(self, source: str, engine: Any) -> None:
        stream = opened(source, IDS | {"x": sr.FixedLenFeature((2,), "float32")}, engine=engine)
        dataset = adapter.as_dataset(stream)
        (batch, *_) = stream.peek()
        element = next(iter(dataset))
        for name in ("id", "x"):
            assert np.asarray(element[name]).ctypes.data == batch[name].ctypes.data
        stream.close()

    def test_pictures_of_one_shape(self, source: str) -> None:
        features = {"picture": sr.Image(shape=(2, 3, 3))}
        dataset = adapter.as_dataset(opened(source, features))
        assert dataset.element_spec["picture"].shape.as_list() == [None, 2, 3, 3]
        pictures = np.concatenate([element["picture"].numpy() for element in dataset])
        assert pictures[:, 0, 0, 0].tolist() == list(range(RECORDS))

    def test_arrays_of_different_shapes(self, tmp_path: Path) -> None:
        grids = [np.arange(6 * h * w).reshape(h, w, 2, 3) for h, w in ((2, 1), (0, 4), (3, 2))]
        with sr.TFRecordWriter(tmp_path / "part.tfrecord") as writer:
            for grid in grids:
                sizes = {"h": grid.shape[0], "w": grid.shape[1], "all": grid.shape}
                raw = {"raw": grid.astype("<f2").tobytes(), "other": grid.ravel()}
                png = sr.encode_png(np.ones((grid.shape[1], 3, 3), np.uint8))
                writer.write({**sizes, **raw, "grid": grid.ravel(), "picture": png})
        features = {
            "raw": sr.ShapedFeature(("h", "w", 2, 3), "float16", raw=True),
            "grid": sr.ShapedFeature(("h", 2, "w", 3), "int64"),
            "other": sr.ShapedFeature("all", "int64", rank=4),
            "picture": sr.Image(),
        }
        dataset = adapter.as_dataset(opened(str(tmp_path / "part.tfrecord"), features))
        shapes = {name: spec.shape.as_list() for name, spec in dataset.element_spec.items()}
        none: list[None] = [None]
        assert shapes == {
            "raw": none * 3 + [2, 3],
            "grid": none * 4 + [3],
            "other": none * 5,
            "picture": none * 3 + [3],
        }
        (element,) = dataset
        assert element["raw"].to_list() == [grid.tolist() for grid in grids]
        assert element["raw"].dtype == tf.float16
        swapped = [grid.reshape(len(grid), 2, grid.shape[1], 3) for grid in grids]
        assert element["grid"].to_list() == [grid.tolist() for grid in swapped]
        assert element["other"].to_list() == [grid.tolist() for grid in grids]
        assert element["picture"][1].to_tensor().shape.as_list() == [4, 3, 3]

    def test_pictures_of_steps(self, tmp_path: Path) -> None:
        pictures = [np.full((size, 2, 3), size, np.uint8) for size in (1, 2, 3)]
        with sr.TFRecordWriter(tmp_path / "part.tfrecord") as writer:
            for some in (pictures[:2], pictures[2:]):
                steps = {"p": [[sr.encode_png(picture)] for picture in some]}
                writer.write(sr.encode_sequence_example({}, steps))
        features: Any = ({}, {"p": sr.Image()})
        (element,) = adapter.as_dataset(opened(str(tmp_path / "part.tfrecord"), features))
        whole = [picture.tolist() for picture in pictures]
        assert element["p"].to_list() == [whole[:2], whole[2:]]

    def test_raw_records(self, source: str) -> None:
        dataset = adapter.as_dataset(opened(source, None))
        records = [one for element in dataset for one in element["records"].numpy().tolist()]
        files = sorted(tf.io.gfile.glob(source))
        assert records == list(tf.data.TFRecordDataset(files).as_numpy_iterator())

    def test_a_mask_is_an_entry(self, source: str) -> None:
        dataset = adapter.as_dataset(opened(source, batch_size=16, remainder="pad", index=True))
        assert dataset.element_spec["mask"] == tf.TensorSpec((None,), tf.bool)
        assert [int(element["mask"].numpy().sum()) for element in dataset] == [16, 4]

    def test_sequence_examples(self, tmp_path: Path) -> None:
        with sr.TFRecordWriter(tmp_path / "part.tfrecord") as writer:
            for number in range(4):
                steps: dict[str, list[Any]] = {
                    "f": [[float(n)] for n in range(number)],
                    "w": [[b"w"] * n for n in range(number)],
                }
                writer.write(sr.encode_sequence_example({"id": number}, steps))
        features: Any = (
            {"id": tf.io.FixedLenFeature((), tf.int64)},
            {
                "f": tf.io.FixedLenSequenceFeature((1,), tf.float32),
                "w": tf.io.VarLenFeature(tf.string),
            },
        )
        (element,) = adapter.as_dataset(opened(str(tmp_path / "part.tfrecord"), features))
        records = list(tf.data.TFRecordDataset(str(tmp_path / "part.tfrecord")))
        context, sequence, lengths = tf.io.parse_sequence_example(records, *features)
        for name, tensor in {**context, **sequence, "f/length": lengths["f"]}.items():
            assert values(element[name]) == values(tensor), name


class TestPairs:
    FEATURES = IDS | {"x": sr.FixedLenFeature((2,), "float32")}

    def test_they_are_tensors_of_the_element(self, source: str) -> None:
        stream = opened(source, self.FEATURES)
        pairs = adapter.as_dataset(stream, inputs={"point": "x"}, targets="id")
        assert pairs.element_spec == (
            {"point": tf.TensorSpec((None, 2), tf.float32)},
            tf.TensorSpec((None,), tf.int64),
        )
        for (inputs, targets), batch in zip(pairs, opened(source, self.FEATURES), strict=True):
            np.testing.assert_array_equal(inputs["point"], batch["x"])
            np.testing.assert_array_equal(targets, batch["id"])

    def test_a_mask_comes_third(self, source: str) -> None:
        stream = opened(source, batch_size=16, remainder="pad", index=True)
        masks = [mask for *_, mask in adapter.as_dataset(stream, inputs="id", targets="id")]
        assert [int(mask.numpy().sum()) for mask in masks] == [16, 4]

    def test_the_state_is_one_of_the_inputs(self, source: str) -> None:
        names = {"inputs": ["id", "at"], "targets": "id"}
        pairs = adapter.as_dataset(opened(source), state="at", **names)
        whole = [targets.numpy().tolist() for _, targets in pairs]
        for taken, (inputs, _) in enumerate(pairs.take(3), 1):
            resumed = opened(source)
            resumed.load_state_dict(json.loads(inputs["at"].numpy()))
            assert rows(resumed) == whole[taken:]


class TestRuns:
    def test_each_iterator_that_ends_is_a_run(self, source: str) -> None:
        dataset, stream = adapter.as_dataset(shuffled(source)), shuffled(source)
        for _ in range(3):
            assert ids(dataset) == rows(stream)

    def test_it_ends_inside_of_other_datasets(self, source: str) -> None:
        """As the input of others, it must end by a sign of tf.data, not by an error."""
        whole: list[Any] = [number for row in rows(opened(source)) for number in row]
        dataset = adapter.as_dataset(opened(source)).unbatch().prefetch(2).repeat(2)
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors({"id": np.int64(-1)}))
        assert ids(dataset) == [*whole, *whole, -1]

    def test_an_error_is_no_end(self, source: str) -> None:
        def fail(batch: sr.Batch) -> Any:
            if 8 in batch["id"]:
                raise ValueError("eight")
            return batch

        elements = iter(adapter.as_dataset(opened(source, transform=fail)).repeat(2))
        assert ids([next(elements), next(elements)]) == rows(opened(source))[:2]
        with pytest.raises(tf.errors.OpError, match="eight"):
            next(elements)

    def test_one_that_is_dropped_is_begun_anew(self, source: str) -> None:
        dataset, whole = adapter.as_dataset(shuffled(source)), rows(shuffled(source))
        assert ids(dataset.take(2)) == whole[:2]
        for element in dataset.prefetch(1):
            assert ids([element]) == whole[:1]
            break
        assert ids(dataset) == whole

    def test_a_run_that_was_taken_whole_has_ended(self, source: str) -> None:
        dataset, stream = adapter.as_dataset(shuffled(source)), shuffled(source)
        assert ids(dataset.take(5)) == rows(stream)
        assert ids(dataset) == rows(stream)

    def test_repeat_goes_through_the_epochs(self, source: str) -> None:
        dataset, stream = adapter.as_dataset(shuffled(source)), shuffled(source)
        assert ids(dataset.repeat(3)) == [*rows(stream), *rows(stream), *rows(stream)]

    def test_a_stream_that_was_moved_is_followed(self, source: str) -> None:
        stream, other = shuffled(source), shuffled(source)
        dataset = adapter.as_dataset(stream)
        list(dataset.take(2))
        for one in (stream, other):
            one.set_epoch(1)
        assert ids(dataset) == rows(other)

    def test_that_of_a_rank_is_not_divided_again(self, source: str) -> None:
        policy = tf.data.experimental.AutoShardPolicy
        policies = []
        for rank in ({}, {"rank": 1, "world_size": 2}):
            settings = {"lanes": 2, "index": True, **rank}
            options = adapter.as_dataset(opened(source, **settings)).prefetch(1).options()
            policies.append(options.experimental_distribute.auto_shard_policy)
        assert policies == [policy.AUTO, policy.OFF]

    def test_two_iterators_at_once_are_refused(self, source: str) -> None:
        dataset = adapter.as_dataset(opened(source))
        first, second = iter(dataset), iter(dataset)
        next(first)
        next(second)
        with pytest.raises(Exception, match="another iterator over this stream has begun"):
            list(first)


class TestState:
    @pytest.mark.parametrize("index", [None, True])
    def test_the_state_rides_on_the_element(self, source: str, index: Any) -> None:
        """Two runs, as an iterator for each, with batches that are prefetched."""
        dataset = adapter.as_dataset(shuffled(source, index=index), state="state")
        elements = [element for _ in range(2) for element in dataset.prefetch(3)]
        whole = ids(elements)
        for taken, element in enumerate(elements[:6], 1):
            stream = shuffled(source, index=index)
            stream.load_state_dict(json.loads(element["state"].numpy()))
            rest = [one for _ in range(2 if taken <= 5 else 1) for one in rows(stream)]
            assert rest == whole[taken:]

    def test_the_stream_s_is_that_of_what_was_taken(self, source: str) -> None:
        stream = shuffled(source)
        whole = ids(adapter.as_dataset(shuffled(source)))
        list(adapter.as_dataset(stream).take(2))
        state, resumed = stream.state_dict(), shuffled(source)
        resumed.load_state_dict(state)
        assert ids(adapter.as_dataset(resumed)) == whole[state["step"] :]


class TestRefusals:
    def test_single_records(self, source: str) -> None:
        with pytest.raises(ConfigError, match="single records"):
            adapter.as_dataset(opened(source, batch_size=None))

    def test_arrays_of_other_shapes_than_the_spec_gives(self, source: str) -> None:
        def cut(batch: sr.Batch) -> dict[str, Any]:
            shapes = np.full((len(batch), 3), [2, 3, 1])
            values = np.zeros(6 * len(batch), np.uint8)
            return {"picture": sr.Arrays(values, np.arange(len(batch) + 1) * 6, shapes)}

        stream = opened(source, {"picture": sr.Image()}, transform=cut)
        with pytest.raises(
            ConfigError, match=r"'picture' has arrays whose shapes do not end with \(3,\)"
        ):
            adapter.as_dataset(stream)

    def test_a_state_that_no_pair_would_have(self, source: str) -> None:
        with pytest.raises(ConfigError, match="in neither inputs nor targets"):
            adapter.as_dataset(opened(source), "state", inputs="id", targets="id")

    def test_a_pair_of_other_names(self, source: str) -> None:
        with pytest.raises(ConfigError, match="no feature 'y', but id; name one"):
            adapter.as_dataset(opened(source), inputs="id", targets="y")

    def test_two_entries_of_one_name(self, source: str) -> None:
        with pytest.raises(ConfigError, match="named 'id'"):
            adapter.as_dataset(opened(source), state="id")

    def test_no_batch(self, tmp_path: Path) -> None:
        (tmp_path / "part.tfrecord").touch()
        with pytest.raises(ConfigError, match="no batch"):
            adapter.as_dataset(opened(str(tmp_path / "part.tfrecord")))

    def test_another_shape_later(self, source: str) -> None:
        def wider(batch: sr.Batch) -> dict[str, Any]:
            return {"id": batch["id"][:, None].repeat(1 + batch["id"][0] // 4, 1)}

        with pytest.raises(Exception, match="shape"):
            list(adapter.as_dataset(opened(source, transform=wider)))
