"""With Keras 3: a dataset for ``fit``, on the backends TensorFlow, PyTorch and JAX.

Keras takes an object of its class ``DataAdapter`` as it is (since 3.7). It would ask for the
batches of a ``PyDataset`` in a shuffled order, and would lose some batches of a generator while it
finds out their shapes.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from streamrec.adapters.passes import Passes, check_stream, names_of, pick
from streamrec.errors import ConfigError
from streamrec.flow import callers
from streamrec.streams import handle
from streamrec.suggestions import needs
from streamrec.values.columns import pick_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from streamrec.adapters.passes import Convert, Names
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.streams.stream import Stream

__all__ = ["BackupAndRestore", "KerasDataset", "as_dataset"]

with needs("streamrec.adapters.keras", "keras"):
    # Keras has no public name for the base of what fit takes.
    DataAdapter: Any = import_module("keras.src.trainers.data_adapters.data_adapter").DataAdapter
    EpochIterator: Any = import_module("keras.src.trainers.epoch_iterator").EpochIterator
    Trainer: Any = import_module("keras.src.trainers.trainer").Trainer
    keras: Any = import_module("keras")

EVALUATIONS = ("evaluate", "predict")
"""The methods of a model that evaluate, also within a ``fit``."""


def as_dataset(
    stream: Stream, inputs: Names, targets: Names | None = None, weights: str | None = None
) -> KerasDataset:
    """Return a dataset for Keras' ``fit``, ``evaluate`` and ``predict``, or to validate.

    It gives ``(inputs, targets)``, or ``(inputs, targets, weights)``. On one rank, rows that are
    masked are cut off, as Keras would divide its loss by their number, too. On several ranks, and
    with a ``keras.distribution``, batches keep their size, and masked rows have the weight 0.

    An epoch of Keras is a run of the stream: ``epochs=1`` or ``steps_per_epoch`` are for the
    stream, the number of epochs is for ``fit``. An interrupted epoch begins anew, and so does each
    evaluation and prediction, even with ``validation_steps`` or ``steps``. With
    ``fit(steps_per_epoch=...)``, its epochs and those of the next ``fit`` go on in the run, and
    then in the next run: no batch is left out.

    Args:
        stream: With a ``batch_size``.
        inputs: The name of a feature; or several names, or a mapping from the model's names to
            features: the model gets a dict.
        targets: As the inputs; ``None``: none, as for ``predict``.
        weights: The feature with the weight of each row, a number: Keras' ``sample_weight``.

    Raises:
        ConfigError: The stream gives single records, or has no column of a feature, or the backend
            has no arrays for a column. The first such batch raises it. Or ``weights`` is given
            without ``targets``.
    """
    check_stream(stream, "as_dataset")
    if weights is not None and targets is None:
        raise ConfigError("weights= is given without targets=; name the targets, too")
    if weights is not None and not isinstance(weights, str):
        raise ConfigError(f"weights= is {weights!r}; give the name of one feature")
    named = None if targets is None else names_of(targets, "targets")
    return KerasDataset(stream, names_of(inputs, "inputs"), named, weights)


class KerasDataset(DataAdapter):  # type: ignore[misc]
    """The batches of a stream as Keras takes them; :func:`as_dataset` makes it."""

    # Keras need not know the rows of a batch, nor of the last one.
    batch_size = partial_batch_size = None
    has_partial_batch = False

    def __init__(
        self, stream: Stream, inputs: Names, targets: Names | None, weights: str | None
    ) -> None:
        self._stream = stream
        self._passes = UnmaskedPasses(stream)
        self._inputs = inputs
        self._targets = targets
        self._weights = weights
        self._taken: int | None = None
        """The batches that Keras had taken when it told the last end of an epoch."""

    def __repr__(self) -> str:
        return f"<Keras dataset of {self._stream!r}>"

    def __iter__(self) -> NoReturn:
        """Refuse: Keras iterates it, by calls of its own.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "a Keras dataset is for fit, evaluate and predict; for a loop of your own, iterate the "
            "stream: for batch in stream"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch that Keras took: plain JSON-able data.

        Keras's JAX backend takes one batch ahead of the model where there is an accelerator.
        """
        return self._stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on from a state, or from those of all ranks for another world size.

        Raises:
            StateError: As ``Stream.load_state_dict``.
        """
        self._stream.load_state_dict(state)

    # -- what Keras calls --------------------------------------------------------------------------

    def get_numpy_iterator(self) -> Iterator[tuple[Any, ...]]:
        """Yield the batches of a run as NumPy's arrays, without a copy."""
        return self._convert(_dense)

    def get_jax_iterator(self) -> Iterator[tuple[Any, ...]]:
        """Yield the batches of a run as arrays that JAX takes unchanged, or not at all."""
        from streamrec.adapters.jax import of_jax

        return self._convert(of_jax)

    def get_torch_dataloader(self) -> Any:
        """Return a ``DataLoader`` of the batches of a run as tensors, without a copy."""
        return _torch_loader(lambda: self._convert(_torch_tensor))

    def get_tf_dataset(self) -> Any:
        """Return a ``tf.data.Dataset`` of the batches of a run, whose numbers are not copied."""
        import tensorflow as tf

        from streamrec.adapters.tensorflow import dataset_of

        def select(columns: Mapping[str, Any], mask: Any) -> tuple[Any, ...]:
            return self._select(columns, mask, lambda values: tf.cast(values, tf.float32))

        options = tf.data.Options()
        # Else tf.data takes batches ahead unasked, and the stream's state is not that of the model.
        options.experimental_optimization.inject_prefetch = False
        options.experimental_optimization.map_parallelization = False
        return dataset_of(self._passes, form=select).with_options(options)

    @property
    def num_batches(self) -> int | None:
        """The batches of a run, where they are known and end an epoch."""
        _refuse_what_is_ignored(callers.arguments_of(1))
        if getattr(callers.nearest(EpochIterator), "steps_per_epoch", None):
            return None  # else Keras would end at a run's end, and lose what it has not taken
        # Opens the stream, without which it has no length.
        self._stream.peek(0)
        if handle.of(self._stream).is_endless:
            raise ConfigError(
                "the stream was opened with epochs=None, so an epoch of Keras would never end; "
                "leave out epochs=, or limit the epoch: steps_per_epoch= of fit, validation_steps= "
                "for its validation, steps= of evaluate and predict"
            )
        try:
            return len(self._stream)
        except TypeError:
            return None

    def on_epoch_begin(self) -> None:
        """Have an evaluation or a prediction begin at the beginning of the run.

        ``validation_steps`` and ``steps`` may have ended the one before in its middle. Keras has
        one iterator for all validations of a ``fit``, which may be a batch ahead. A training of
        ``steps_per_epoch`` goes on from one run to the next.
        """
        iterator, evaluates = callers.nearest(EpochIterator), callers.runs(EVALUATIONS, Trainer)
        has_steps = iterator is not None and bool(iterator.steps_per_epoch)
        self._passes.goes_on = has_steps and not evaluates
        if evaluates:
            self._passes.restart()
            if iterator is not None:
                iterator._current_iterator = None  # noqa: SLF001 - there is no other way
        if iterator is not None and not has_steps:
            _expect_the_end(iterator)

    def on_epoch_end(self) -> None:
        """Note the end of an epoch.

        Keras tells one more when ``fit`` begins. Two without a batch between them: the last ``fit``
        came to its end, maybe in the middle of a run. One alone: Keras only looked at a batch.
        """
        self._passes.goes_on = False
        if self._taken == self._passes.taken:
            self._passes.settle()
        self._taken = self._passes.taken

    # -- batches -----------------------------------------------------------------------------------

    def _convert(self, convert: Convert) -> Iterator[tuple[Any, ...]]:
        for batch in self._passes.batches():
            yield self._select(batch, batch.mask, _floats, convert)

    def _select(
        self,
        columns: Mapping[str, Any],
        mask: Any,
        floats: Callable[[Any], Any],
        convert: Convert | None = None,
    ) -> tuple[Any, ...]:
        inputs = pick(columns, self._inputs, convert)
        if self._targets is None:
            if mask is not None:
                raise ConfigError(
                    "the stream has masked rows, and without targets Keras has no weights to tell "
                    "them by; read the stream on one rank, or open it without what masks rows: "
                    'remainder="pad", exclude, on_corrupt'
                )
            return (inputs,)
        targets = pick(columns, self._targets, convert)
        # Keras has no masks of rows, but a row of weight 0 adds nothing to the loss.
        factor = None if mask is None else floats(mask)
        if self._weights is None:
            return (inputs, targets) if factor is None else (inputs, targets, factor)
        weights = floats(pick(columns, self._weights, convert and _dense))
        if factor is not None:
            # A row may have several weights, as a sequence has one for each step.
            weights = weights * factor[(..., *[None] * (len(weights.shape) - 1))]
        return inputs, targets, weights


class UnmaskedPasses(Passes):
    """Passes whose batches have no masked rows: Keras divides a batch's loss by all its rows.

    Where several ranks or devices share a step, batches keep their size, and their masks.
    """

    def take(self, number: int) -> Batch | None:
        """Return the next batch that has a row, without its masked rows; ``None`` at the end."""
        while (batch := super().take(number)) is not None:
            if batch.mask is None or batch.mask.any() or self._shares_steps:
                return self._unmasked(batch)
        return None

    def example(self) -> Batch:
        """Return the batch with which the next pass begins, without its masked rows."""
        return self._unmasked(super().example())

    def _unmasked(self, batch: Batch) -> Batch:
        if batch.mask is None:
            return batch
        if self._shares_steps:
            if not batch.mask.all():
                callers.warn_user(_TOO_SMALL)
            return batch
        if batch.mask.all() or not batch.mask.any():  # an example without rows tells types alone
            return replace(batch, mask=None)
        rows = np.flatnonzero(batch.mask)
        columns = {name: pick_rows(column, rows) for name, column in batch.items()}
        return replace(batch, columns=columns, rows=len(rows), mask=None)

    @property
    def _shares_steps(self) -> bool:
        ranks = handle.of(self.stream).assignment.rank.world_size
        return ranks > 1 or keras.distribution.distribution() is not None


_TOO_SMALL = (
    "Keras divides the loss and the metrics of a batch by all its rows, so masked rows (padding, "
    "excluded and damaged records) make its 'loss' and 'metrics' wrong; compile the model with "
    "weighted_metrics=, name the loss there too, and read those values"
)


class BackupAndRestore(keras.callbacks.BackupAndRestore):  # type: ignore[misc]
    """Keras' callback of this name, which backs up the state of a dataset beside the model.

    A ``fit`` that was killed goes on at the batch behind the backup, in the middle of an epoch too:
    with ``save_freq=100`` it repeats what came after the last hundredth batch, and nothing else.

    Args:
        dataset: What ``fit`` trains on.
        backup_dir: A directory of this callback alone.
        **arguments: Keras' own, such as ``save_freq``.
    """

    def __init__(self, dataset: KerasDataset, backup_dir: str, **arguments: Any) -> None:
        super().__init__(backup_dir, **arguments)
        self._dataset = dataset
        self._files = [Path(backup_dir, f"stream-{number}.json") for number in range(2)]
        self._latest = 0
        """The number of the file with the state that belongs to the weights."""

    def _step(self) -> int:
        # Keras' JAX backend keeps the optimizer's numbers elsewhere while it trains.
        getattr(self.model, "jax_state_sync", lambda: None)()
        return int(self.model.optimizer.iterations)

    def _save_model(self) -> None:
        # Before the weights, and beside the state of those that are there: whenever the process is
        # killed, the weights have the state of their step.
        other = 1 - self._latest
        self._files[other].parent.mkdir(parents=True, exist_ok=True)
        self._files[other].write_text(json.dumps([self._step(), self._dataset.state_dict()]))
        super()._save_model()
        self._latest = other

    def _load_model(self) -> None:
        super()._load_model()
        states = {}
        for number, file in enumerate(self._files):
            # A file that a killed process has half written is not that of the weights.
            with suppress(FileNotFoundError, ValueError):
                step, state = json.loads(file.read_text())
                states[step] = number, state
        step = self._step()
        if not states or not step:
            return
        if step not in states:
            raise ConfigError(
                f"{self.backup_dir} has weights of step {step}, and states of the stream of step "
                f"{' and '.join(map(str, states))}; empty the directory, and begin anew"
            )
        self._latest, state = states[step]
        self._dataset.load_state_dict(state)


def _floats(values: Any) -> Any:
    return values.astype(np.float32)


def _dense(name: str, column: Any) -> Any:
    """Return a column that is an array of numbers.

    Raises:
        ConfigError: It is not an array of numbers.
    """
    if isinstance(column, np.ndarray) and column.dtype != object:
        return column
    kind = type(column).__name__
    raise ConfigError(
        f"feature {name!r} is of type {kind}, but Keras takes arrays of numbers; let transform= "
        "make such an array of it, or use the TensorFlow backend, which takes strings"
    )


def _torch_tensor(name: str, column: Any) -> Any:
    try:
        return import_module("torch").from_numpy(_dense(name, column))
    except TypeError as error:
        raise ConfigError(
            f"feature {name!r} cannot become a tensor: {error}; give another dtype"
        ) from None


def _torch_loader(iterate: Callable[[], Iterator[Any]]) -> Any:
    data = import_module("torch.utils.data")

    class Tensors(data.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[Any]:
            return iterate()

    # Keras takes a DataLoader and no plain iterable on its torch backend; None: batches stay as
    # they are.
    return data.DataLoader(Tensors(), batch_size=None)


def _expect_the_end(iterator: Any) -> None:
    """Have Keras take the end of a run of unknown length as the end of an epoch.

    It would warn, and expect as many batches of every further run, which may have more.
    """

    def take_the_end() -> None:
        iterator._num_batches = None  # noqa: SLF001 - there is no other way

    iterator._interrupted_warning = take_the_end  # noqa: SLF001


def _refuse_what_is_ignored(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of ``fit`` that Keras ignores beside data of its class ``DataAdapter``."""
    for name, advice in _IGNORED.items():
        if arguments.get(name) is not None:
            raise ConfigError(f"{name}= has no effect beside a stream; {advice}")


_IGNORED = {
    "y": "name the feature: as_dataset(stream, inputs, targets)",
    "sample_weight": "name the feature with the weights: as_dataset(..., weights=...)",
    "class_weight": (
        "let map= of the stream make a feature of each row's weight from its label, and name it: "
        "as_dataset(..., weights=...)"
    ),
}
