"""Tests of the adapter with the real Keras, on the backend that the environment names.

test_keras.py runs them, in a process for each backend.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.adapters.keras import BackupAndRestore, KerasDataset, as_dataset
from streamrec.errors import ConfigError
from tests.pipeline.small_datasets import write_index

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

keras: Any = import_module("keras")
BACKEND: str = keras.backend.backend()

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.timeout(120),
]
RECORDS = 40
FEATURES = {
    "x": sr.FixedLenFeature((2,), "float32"),
    "y": sr.FixedLenFeature((), "float32"),
    "id": sr.FixedLenFeature((), "int64"),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two shards of a line to be fitted, y = x0 / 20 + 3, by records that have numbers."""
    directory = tmp_path_factory.mktemp("keras")
    for shard in range(2):
        with sr.TFRecordWriter(f"{directory}/part-{shard}.tfrecord") as writer:
            for row in range(RECORDS // 2):
                writer.write(record(RECORDS // 2 * shard + row))
    write_index(f"{directory}/part-*.tfrecord", 500)
    return f"{directory}/part-*.tfrecord"


def record(number: int) -> dict[str, Any]:
    x = number / RECORDS
    return {
        "x": [x, 1.0], "y": 2 * x + 3, "id": number, "wide": number << 40, "name": b"n",
        "steps": [1] * number,
    }  # fmt: skip


def opened(source: str, features: Any = FEATURES, **settings: Any) -> sr.Stream:
    settings = {
        "batch_size": 8, "lanes": 2, "shuffle": True, "shuffle_window": 500, "index": True,
        "engine": "thread", **settings,
    }  # fmt: skip
    return sr.open(source, features, **settings)


def model(metrics: Any = None) -> Any:
    """Return a model that is not built: Keras takes a batch to build it."""
    one = keras.Sequential([keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.3)
    one.compile(optimizer, "mse", weighted_metrics=metrics, jit_compile=False)
    return one


class Numbers(keras.layers.Layer):  # type: ignore[misc]
    """A model whose output is its input, the numbers of the records."""

    def call(self, number: Any) -> Any:
        return keras.ops.cast(keras.ops.expand_dims(number, -1), "float32")


class Seen(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes the stream's step behind each batch of training."""

    def __init__(self, dataset: KerasDataset) -> None:
        super().__init__()
        self.dataset = dataset
        self.states: list[dict[str, Any]] = []

    @property
    def steps(self) -> list[int]:
        return [state["step"] for state in self.states]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.states.append(self.dataset.state_dict())


def about_half(columns: Any, rng: np.random.Generator) -> Any:
    return rng.random(len(columns["id"])) < 0.5


def fit(dataset: KerasDataset, one: Any = None, **arguments: Any) -> Seen:
    seen = Seen(dataset)
    (one or model()).fit(dataset, verbose=0, callbacks=[seen], **arguments)
    return seen


def ids(batches: Iterable[Any]) -> list[list[int]]:
    return [[int(number) for number in batch[0]] for batch in batches]


def batches(dataset: KerasDataset) -> Any:
    """Return the batches of a run, as this backend's trainer takes them."""
    by_backend: dict[str, Any] = {
        "tensorflow": dataset.get_tf_dataset,
        "torch": dataset.get_torch_dataloader,
        "jax": dataset.get_jax_iterator,
    }
    return iter(by_backend[BACKEND]())


def run(dataset: KerasDataset) -> list[list[int]]:
    """Return the numbers of a run."""
    return ids(batches(dataset))


def rows(stream: sr.Stream) -> list[list[int]]:
    return [batch["id"].tolist() for batch in stream]


class TestFit:
    def test_a_model_learns(self, source: str) -> None:
        one, dataset = model(), as_dataset(opened(source), "x", "y")
        losses = one.fit(dataset, epochs=20, verbose=0).history["loss"]
        assert losses[-1] < 0.01 < losses[0]
        kernel = keras.ops.convert_to_numpy(one.layers[0].kernel)
        np.testing.assert_allclose(kernel[0], [2], atol=0.3)

    def test_an_epoch_is_a_run_and_nothing_is_lost(self, source: str) -> None:
        dataset = as_dataset(opened(source), "x", "y")
        assert fit(dataset, epochs=3).steps == list(range(1, 16))

    def test_epochs_have_their_own_shuffle(self, source: str) -> None:
        dataset, stream = as_dataset(opened(source), "id"), opened(source)
        runs = [run(dataset) for _ in range(3)]
        assert runs == [rows(stream) for _ in range(3)]
        assert runs[0] != runs[1]

    def test_another_fit_goes_on_with_the_next_run(self, source: str) -> None:
        one, dataset = model(), as_dataset(opened(source), "x", "y")
        assert fit(dataset, one).steps == [1, 2, 3, 4, 5]
        assert fit(dataset, one).steps == [6, 7, 8, 9, 10]

    def test_steps_per_epoch_goes_on_in_the_run(self, source: str) -> None:
        one, dataset = model(), as_dataset(opened(source, epochs=None), "x", "y")
        assert fit(dataset, one, steps_per_epoch=3, epochs=2).steps == [1, 2, 3, 4, 5, 6]
        assert fit(dataset, one, steps_per_epoch=2).steps == [7, 8]

    def test_the_stream_s_own_steps_per_epoch(self, source: str) -> None:
        dataset = as_dataset(opened(source, steps_per_epoch=3), "x", "y")
        assert fit(dataset, epochs=3).steps == list(range(1, 10))

    def test_a_run_of_unknown_length(self, source: str) -> None:
        """Keras has no warning of it, which would be an error here."""
        one, dataset = model(), as_dataset(opened(source, index=None), "x", "y")
        assert fit(dataset, one, epochs=2).steps == list(range(1, 11))
        assert fit(dataset, one).steps == list(range(11, 16))

    def test_runs_of_other_lengths(self, source: str) -> None:
        """None ends where the first one has, and begins anew."""
        settings: dict[str, Any] = {"index": None, "batch_size": 1, "filter": about_half, "seed": 2}
        plain = opened(source, **settings)
        lengths = [len(rows(plain)) for _ in range(3)]
        assert lengths[0] < lengths[1]
        dataset = as_dataset(opened(source, **settings), "x", "y")
        assert fit(dataset, epochs=3).steps == list(range(1, sum(lengths) + 1))

    @pytest.mark.parametrize("index", [None, True])
    @pytest.mark.parametrize("steps", [5, 2, 7])
    def test_steps_per_epoch_goes_on_in_the_next_run(
        self, source: str, index: Any, steps: int
    ) -> None:
        """A run has five batches; Keras' epochs end in it, with it, or behind it."""
        dataset = as_dataset(opened(source, index=index), "x", "y")
        seen = fit(dataset, epochs=4, steps_per_epoch=steps)
        assert seen.steps == list(range(1, 4 * steps + 1))

    @pytest.mark.parametrize(("ends", "taken"), [(1, 0), (2, 1)])
    def test_two_ends_without_a_batch_are_those_of_two_fits(
        self, source: str, ends: int, taken: int
    ) -> None:
        """The second `fit` goes on where the first one ended; after a look at a batch none does."""
        dataset = as_dataset(opened(source), "id")
        next(dataset.get_numpy_iterator())
        for _ in range(ends):
            dataset.on_epoch_end()
        assert ids(dataset.get_numpy_iterator()) == rows(opened(source))[taken:]

    def test_validation_steps_beyond_the_run_are_told(self, source: str) -> None:
        validation = as_dataset(opened(source, index=None), "x", "y")
        with pytest.warns(UserWarning, match="ran out of data"):
            model().evaluate(validation, steps=7, verbose=0)
        assert validation.state_dict()["step"] == 5

    def test_an_epoch_that_is_broken_off_is_begun_anew(self, source: str) -> None:
        class Stop(keras.callbacks.Callback):  # type: ignore[misc]
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if batch == 2:
                    raise InterruptedError

        one, dataset = model(), as_dataset(opened(source), "x", "y")
        with pytest.raises(InterruptedError):
            one.fit(dataset, verbose=0, callbacks=[Stop()])
        assert dataset.state_dict()["step"] == 3
        assert fit(dataset, one).steps == [1, 2, 3, 4, 5]

    def test_validation_reads_all_of_its_own_stream_each_time(self, source: str) -> None:
        train = as_dataset(opened(source), "x", "y")
        validation = as_dataset(opened(source, shuffle=False), "x", "y")
        seen = fit(train, validation_data=validation, epochs=3)
        assert seen.steps == list(range(1, 16))
        assert validation.state_dict()["step"] == 15

    def test_several_inputs(self, source: str) -> None:
        first, second = keras.Input((2,), name="x"), keras.Input((), name="number", dtype="int32")
        total = keras.layers.Dense(1)(first) + keras.ops.expand_dims(
            keras.ops.cast(second, "float32"), -1
        )
        one = keras.Model({"x": first, "number": second}, total)
        one.compile("sgd", "mse", jit_compile=False)
        dataset = as_dataset(opened(source), {"x": "x", "number": "id"}, "y")
        assert fit(dataset, one).steps == [1, 2, 3, 4, 5]


class TestEvaluate:
    def test_padding_has_no_weight(self, source: str) -> None:
        """The mean of the squares of the numbers 0 to 39, in batches of 16: the last is padded."""
        features = {"id": FEATURES["id"]}
        stream = opened(source, features, batch_size=16, remainder="pad", map=with_zero)
        assert evaluated(as_dataset(stream, "id", "zero")) == [MEAN_SQUARE] * 3

    def test_excluded_records_do_not_count(self, source: str) -> None:
        """A whole batch, and a row in the middle of another."""
        out = [*range(8), 12]
        stream = opened(source, shuffle=False, lanes=1, exclude=places(source, out), map=with_zero)
        kept = [number**2.0 for number in range(RECORDS) if number not in out]
        assert evaluated(as_dataset(stream, "id", "zero")) == [pytest.approx(np.mean(kept))] * 3

    def test_padding_of_several_ranks_is_told(self, source: str) -> None:
        stream = opened(
            source, batch_size=12, lanes=2, remainder="pad", map=with_zero, rank=0, world_size=2
        )
        with pytest.warns(UserWarning, match="by all its rows"):
            loss, _, weighted = evaluated(as_dataset(stream, "id", "zero"))
        assert loss == pytest.approx(weighted * 20 / 24)

    def test_weights_of_rows(self, source: str) -> None:
        """The loss of rows of weight 0 to 39, from one to the next."""
        stream = opened(source, batch_size=16, remainder="pad", map=with_zero)
        numbers = np.arange(RECORDS)
        loss, plain, weighted = evaluated(as_dataset(stream, "id", "zero", weights="id"))
        assert loss == pytest.approx(np.mean(numbers**3.0))
        assert plain == MEAN_SQUARE
        assert weighted == pytest.approx(np.sum(numbers**3.0) / numbers.sum())

    @pytest.mark.filterwarnings("ignore:Keras divides")
    def test_weights_of_steps_beside_padding(self, source: str) -> None:
        """A row with a mask of its own may have a weight for each of its steps."""

        def of_steps(columns: Any) -> dict[str, Any]:
            return {**with_zero(columns), "steps": columns["id"][:, None]}

        stream = opened(
            source, batch_size=12, lanes=2, remainder="pad", map=of_steps, rank=0, world_size=2
        )
        plain = opened(
            source, batch_size=12, lanes=2, remainder="pad", map=of_steps, rank=0, world_size=2
        )
        of_row = evaluated(as_dataset(plain, "id", "zero", weights="id"))
        assert evaluated(as_dataset(stream, "id", "zero", weights="steps")) == of_row

    def test_predict_leaves_padding_out(self, source: str) -> None:
        stream = opened(source, batch_size=16, remainder="pad")
        predicted = keras.Sequential([Numbers()]).predict(as_dataset(stream, "id"), verbose=0)
        assert sorted(predicted.ravel()) == list(range(RECORDS))

    def test_a_stream_without_an_end(self, source: str) -> None:
        endless = as_dataset(opened(source, epochs=None), "x", "y")
        with pytest.raises(ConfigError, match="never end; leave out epochs="):
            model().evaluate(endless, verbose=0)
        model().evaluate(endless, steps=1, verbose=0)

    def test_steps_take_the_same_batches_each_time(self, source: str) -> None:
        """Validations of one `fit`, of the next one, and evaluations; then all of it."""
        one, train = model(), as_dataset(opened(source), "x", "y")
        validation = as_dataset(opened(source, shuffle=False), "x", "y")
        for _ in range(2):
            fit(train, one, validation_data=validation, validation_steps=3, epochs=2)
            assert validation.state_dict()["step"] == 3
        assert train.state_dict()["step"] == 20
        for _ in range(2):
            one.evaluate(validation, steps=2, verbose=0)
            assert validation.state_dict()["step"] == 2
        one.evaluate(validation, verbose=0)
        assert validation.state_dict()["step"] == 5

    def test_steps_of_predict(self, source: str) -> None:
        one = keras.Sequential([Numbers()])
        dataset = as_dataset(opened(source), "id")
        first, again, whole = (
            one.predict(dataset, steps=steps, verbose=0).ravel().tolist() for steps in (2, 2, None)
        )
        assert first == again == whole[:16]
        assert sorted(whole) == list(range(RECORDS))

    def test_predict(self, source: str) -> None:
        one = keras.Sequential([Numbers()])
        dataset = as_dataset(opened(source), "id")
        predicted = one.predict(dataset, verbose=0).ravel().astype(int).tolist()
        assert predicted == [number for part in rows(opened(source)) for number in part]


MEAN_SQUARE: Any = pytest.approx(np.mean(np.arange(RECORDS) ** 2.0))


def evaluated(dataset: KerasDataset) -> list[float]:
    """Return the mean of the squares of the rows' numbers, as Keras' loss and kinds of metrics."""
    one = keras.Sequential([Numbers()])
    squares = [keras.metrics.MeanSquaredError(name) for name in ("plain", "weighted")]
    one.compile("sgd", "mse", metrics=squares[:1], weighted_metrics=squares[1:], jit_compile=False)
    said = one.evaluate(dataset, verbose=0, return_dict=True)
    return [said[name] for name in ("loss", "plain", "weighted")]


def places(source: str, numbers: list[int]) -> list[tuple[str, int]]:
    half = RECORDS // 2
    return [(source.replace("*", str(number // half)), number % half) for number in numbers]


def with_zero(columns: Any) -> dict[str, Any]:
    return {"id": columns["id"], "zero": np.zeros((len(columns["id"]), 1), np.float32)}


class TestState:
    @pytest.mark.parametrize("index", [None, True])
    def test_exact_at_every_step(self, source: str, index: Any) -> None:
        """Stop in fit after each batch of two epochs, and resume by a new stream."""
        whole = rows(opened(source, index=index, epochs=2))
        seen = fit(as_dataset(opened(source, index=index, epochs=2), "x", "y"))
        assert len(seen.states) == len(whole)
        for taken, state in enumerate(seen.states[:-1], 1):
            dataset = as_dataset(opened(source, index=index, epochs=2), "id")
            dataset.load_state_dict(json.loads(json.dumps(state)))
            assert ids(dataset.get_numpy_iterator()) == whole[taken:]


class Killed(Exception):
    """In place of the end of a process."""


class Kill(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends a fit at a batch, counted over all epochs, before that batch's backup."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.left = number

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if not self.left:
            raise Killed


class TestBackupAndRestore:
    @pytest.mark.parametrize("every", ["epoch", 2])
    @pytest.mark.parametrize("kill_at", [3, 5, 7])
    def test_a_fit_that_was_killed_trains_as_one_that_was_not(
        self, source: str, tmp_path: Path, every: Any, kill_at: int
    ) -> None:
        def train(*callbacks: Any) -> tuple[Any, list[int]]:
            dataset = as_dataset(opened(source), "x", "y")
            one, seen = built(), Seen(dataset)
            backup = BackupAndRestore(dataset, str(tmp_path / "backup"), save_freq=every)
            one.fit(dataset, epochs=3, verbose=0, callbacks=[*callbacks, seen, backup])
            return one, seen.steps

        whole, steps = train()
        with pytest.raises(Killed):
            train(Kill(kill_at))
        resumed, rest = train()
        saved = (kill_at - 1) // 5 * 5 if every == "epoch" else (kill_at - 1) // 2 * 2
        assert len(rest) == len(steps) - saved
        for ours, theirs in zip(resumed.get_weights(), whole.get_weights(), strict=True):
            np.testing.assert_array_equal(ours, theirs)

    def test_states_of_other_steps_are_refused(self, source: str, tmp_path: Path) -> None:
        dataset = as_dataset(opened(source), "x", "y")
        backup = BackupAndRestore(dataset, str(tmp_path), delete_checkpoint=False)
        built().fit(dataset, verbose=0, callbacks=[backup])
        (tmp_path / "stream-1.json").write_text(json.dumps([4, dataset.state_dict()]))
        again = BackupAndRestore(dataset, str(tmp_path))
        with pytest.raises(ConfigError, match=r"weights of step 5, .* of step 4; empty"):
            built().fit(dataset, verbose=0, callbacks=[again])


def built() -> Any:
    """Return a model that Keras can restore, always the same."""
    keras.utils.set_random_seed(1)
    one = model()
    one.build((None, 2))
    return one


class TestRefusals:
    @pytest.mark.parametrize("argument", ["y", "sample_weight", "class_weight"])
    def test_arguments_that_keras_would_ignore(self, source: str, argument: str) -> None:
        given = {0: 1.0} if argument == "class_weight" else np.zeros(RECORDS)
        with pytest.raises(ConfigError, match=f"{argument}= has no effect.*as_dataset"):
            model().fit(as_dataset(opened(source), "x", "y"), verbose=0, **{argument: given})

    def test_a_feature_that_is_not_there(self, source: str) -> None:
        with pytest.raises(ConfigError, match="no feature 'z', but x, y, id"):
            run(as_dataset(opened(source), "x", "z"))

    def test_masks_without_targets(self, source: str) -> None:
        stream = opened(source, batch_size=16, remainder="pad", rank=0, world_size=2)
        with pytest.raises(ConfigError, match="without targets"):
            run(as_dataset(stream, "id"))

    def test_weights_without_targets(self, source: str) -> None:
        with pytest.raises(ConfigError, match="weights= is given without targets="):
            as_dataset(opened(source), "x", weights="y")

    def test_names_that_are_none(self, source: str) -> None:
        with pytest.raises(ConfigError, match=r"weights= is .*give the name of one feature"):
            as_dataset(opened(source), "x", "y", weights=["id"])  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="inputs= is 3; give the name of a feature"):
            as_dataset(opened(source), 3)  # type: ignore[arg-type]

    def test_a_loop(self, source: str) -> None:
        with pytest.raises(TypeError, match="iterate the stream"):
            list(as_dataset(opened(source), "x"))

    @pytest.mark.skipif(BACKEND == "tensorflow", reason="TensorFlow has tensors of strings")
    def test_strings(self, source: str) -> None:
        with pytest.raises(ConfigError, match="'name' is of type BytesColumn"):
            run(as_dataset(opened(source, {"name": sr.FixedLenFeature((), bytes)}), "name"))

    @pytest.mark.skipif(BACKEND == "tensorflow", reason="TensorFlow has ragged tensors")
    def test_rows_of_different_lengths(self, source: str) -> None:
        with pytest.raises(ConfigError, match="'steps' is of type Ragged"):
            run(as_dataset(opened(source, {"steps": sr.RaggedFeature("int64")}), "steps"))

    @pytest.mark.skipif(BACKEND != "jax", reason="this backend has int64")
    def test_numbers_that_jax_would_cut(self, source: str) -> None:
        with pytest.raises(ConfigError, match="'wide' holds"):
            run(as_dataset(opened(source, {"wide": sr.FixedLenFeature((), "int64")}), "wide"))

    def test_single_records(self, source: str) -> None:
        with pytest.raises(ConfigError, match="single records"):
            run(as_dataset(opened(source, batch_size=None), "x"))


def test_no_copy(source: str) -> None:
    stream = opened(source)
    dataset = as_dataset(stream, "x", "y")
    (batch,) = stream.peek()
    x, _ = next(batches(dataset))
    assert np.asarray(x).ctypes.data == batch["x"].ctypes.data


@pytest.mark.parametrize("name", ["mask", "y"])
def test_a_target_is_no_mask(source: str, name: str) -> None:
    def named(columns: Any) -> dict[str, Any]:
        return {"x": columns["x"], name: columns["y"]}

    features = {"x": FEATURES["x"], "y": FEATURES["y"]}
    dataset = as_dataset(opened(source, features, map=named), "x", name)
    assert len(next(batches(dataset))) == 2
