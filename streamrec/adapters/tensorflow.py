"""With TensorFlow: a stream as a ``tf.data.Dataset``."""

from __future__ import annotations

import json
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.adapters.passes import Names, Pairs, Passes, check_stream
from streamrec.errors import ConfigError
from streamrec.formats.examples.descriptions import SequenceFeatures, from_description
from streamrec.formats.examples.image_spec import Image
from streamrec.formats.examples.specs import (
    FixedLenSequenceFeature,
    RaggedFeature,
    ShapedFeature,
    SparseFeature,
    VarLenFeature,
)
from streamrec.streams import handle
from streamrec.suggestions import needs
from streamrec.values.columns import Arrays, BytesColumn, Ragged, Sparse, array_of, cut, offsets_of

with needs("streamrec.adapters.tensorflow", "tensorflow"):
    import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from streamrec.pipeline.batch.batch import Batch
    from streamrec.streams.stream import Stream

__all__ = ["as_dataset", "dataset_of"]

MASK = "mask"
"""The element's entry with ``batch.mask``."""


def as_dataset(
    stream: Stream,
    state: str | None = None,
    inputs: Names | None = None,
    targets: Names | None = None,
) -> Any:
    """Return a ``tf.data.Dataset`` of the stream's batches.

    An element is a dict with what ``tf.io.parse_example`` gives for each feature: a dense tensor, a
    ``RaggedTensor`` or a ``SparseTensor``. Arrays of different shapes, and pictures of different
    sizes, are a ``RaggedTensor``, whose inner dimensions are those that the spec gives. Where the
    stream has masks, ``"mask"`` is one of the entries. Dense numbers are not copied.

    With ``targets``, an element is ``(inputs, targets)``, and ``(inputs, targets, mask)`` where the
    stream has masks.

    Each iterator gives one run of the stream. After an iterator that came to its end, the next
    iterator gives the next run; a run whose iterator was dropped begins anew.
    ``stream.state_dict()`` is the state after the last batch that tf.data has taken, which is ahead
    of the loop if the dataset is prefetched.

    Args:
        stream: With a ``batch_size``. It is opened for the element spec.
        state: The name of an additional entry: the state after the element, as JSON, also with
            prefetching. With ``targets``, the inputs or the targets must name it.
        inputs: The name of a feature, which gives its tensor; or several names, or a mapping from
            other names to them, which give a dict of tensors.
        targets: As the inputs; ``None``: each element is a dict of all entries.

    Raises:
        ConfigError: The stream gives single records, has no batch or no feature of a name, or two
            entries would have one name.
    """
    check_stream(stream, "as_dataset")
    passes, pairs = Passes(stream), Pairs.of_arguments(inputs, targets)
    if pairs is None:
        return dataset_of(passes, state)
    if state is not None and state not in pairs.features:
        raise ConfigError(
            f"state={state!r} is in neither inputs nor targets, so it would be lost; add it to the "
            "inputs"
        )
    return dataset_of(passes, state, pairs.of)


def dataset_of(
    passes: Passes,
    state: str | None = None,
    form: Callable[[Mapping[str, Any], Any], Any] = lambda entries, _: entries,
) -> Any:
    """Return the dataset of :func:`as_dataset`, whose iterators are these passes.

    Args:
        passes: Over a stream with a ``batch_size``. It is opened for the element spec.
        state: The name of an entry with the state.
        form: From an element's entries and its mask, if there is one, to the element.
    """
    example = passes.example()  # which opens the stream
    specs = _specs(handle.of(passes.stream).features)
    columns = _entries(example, state, specs)
    masked = example.mask is not None
    signature = [
        spec
        for name, column in columns.items()
        for spec in _signature(name, column, specs.get(name))
    ]

    def take(number: int) -> list[np.ndarray[Any, Any]]:
        batch = passes.take(int(number))
        if batch is None:
            raise StopIteration
        entries = _entries(batch, state, specs)
        return [part for column in entries.values() for part in _parts(column)]

    def assemble(tensors: Iterator[Any]) -> Any:
        entries = {
            name: _of_spec(_tensor(column, tensors), specs.get(name))
            for name, column in columns.items()
        }
        return form(entries, entries[MASK] if masked else None)

    dataset = _generate(passes.begin, take, signature, assemble)
    return dataset if handle.of(passes.stream).assignment.rank.world_size == 1 else _whole(dataset)


def _whole(dataset: Any) -> Any:
    """Return a dataset that tf.distribute does not divide among its workers.

    A rank's stream is divided already, and each worker would drop most of its batches.
    """
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)


def _generate(
    begin: Callable[[], int],
    take: Callable[[int], list[np.ndarray[Any, Any]]],
    signature: Sequence[Any],
    assemble: Callable[[Iterator[Any]], Any],
) -> Any:
    """Return the dataset of what ``take`` gives until it raises ``StopIteration``.

    ``Dataset.from_generator`` does the same, but checks each array in Python, which takes as long
    again as all the rest.

    Args:
        begin: Called at the first element of each iterator; returns its number.
        take: From this number to the arrays of the next element.
        signature: Specs of the arrays.
        assemble: From the tensors of the arrays to the element.
    """

    def element(number: Any) -> Any:
        tensors = tf.numpy_function(take, [number], [spec.dtype for spec in signature])
        return assemble(map(tf.ensure_shape, tensors, [spec.shape for spec in signature]))

    def iterate(_: Any) -> Any:
        # For each iterator anew: flat_map calls this in the graph.
        number = tf.numpy_function(begin, [], tf.int64)
        # The map of version 1 is the one whose function may end the dataset.
        again = tf.compat.v1.data.Dataset.from_tensors(number).repeat()
        return again.map(tf.autograph.experimental.do_not_convert(element))

    once = tf.data.Dataset.from_tensors(0)
    return once.flat_map(tf.autograph.experimental.do_not_convert(iterate))


def _entries(batch: Batch, state: str | None, specs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of an element, by name."""
    more: dict[str, Any] = {}
    if batch.mask is not None:
        more[MASK] = batch.mask
    if state is not None:
        # An object, as NumPy's own bytes have one length in all elements.
        more[state] = np.array(json.dumps(batch.next_position.to_dict()).encode(), object)
    twice = [name for name in more if name in batch]
    if twice:
        raise ConfigError(f"a feature and another entry are named {twice[0]!r}; rename the feature")
    columns = {name: _in_rows(name, column, specs.get(name)) for name, column in batch.items()}
    return {**columns, **more}


def _specs(plain: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the features' specs by column."""
    if plain is None:
        return {}
    specs = from_description(plain)
    if isinstance(specs, SequenceFeatures):
        return {**specs.context, **specs.sequence}
    return dict(specs)


# -- arrays of different shapes --------------------------------------------------------------------


def _in_rows(name: str, column: Any, spec: Any) -> Any:
    """Return a column with its arrays as rows of rows, a level for each dimension that differs."""
    if isinstance(column, Ragged) and not isinstance(column.values, np.ndarray):
        return Ragged(_in_rows(name, column.values, spec), column.row_splits)
    if not isinstance(column, Arrays):
        return column
    inner = _inner(spec)
    outer = column.shapes.shape[1] - len(inner)
    # Empty arrays have no sizes to compare.
    filled = column.shapes[np.diff(column.offsets) > 0]
    if outer < 0 or (filled[:, outer:] != inner).any():
        raise ConfigError(
            f"column {name!r} has arrays whose shapes do not end with {inner}, as its spec says; "
            "let transform= give its column another name"
        )
    first, last = int(column.offsets[0]), int(column.offsets[-1])
    rows: Any = column.values[first:last].reshape(-1, *inner)
    for level in reversed(range(outer)):
        counts = column.shapes[:, :level].prod(axis=1)
        rows = Ragged(rows, offsets_of(np.repeat(column.shapes[:, level], counts)))
    return rows


def _inner(spec: Any) -> tuple[int, ...]:
    """Return the last sizes of a column's arrays, as far as the spec gives them."""
    if isinstance(spec, Image):
        return (spec.channels,) if spec.channels else ()
    if not isinstance(spec, ShapedFeature) or isinstance(spec.shape, str):
        return ()
    sizes = tuple(takewhile(lambda side: isinstance(side, int), reversed(spec.shape)))[::-1]
    return () if 0 in sizes else sizes


# -- columns and their parts: dense arrays, of which tensors are made in the graph -----------------


def _signature(name: str, column: Any, spec: Any) -> list[Any]:
    """Return the specs of a column's parts."""
    parts = _parts(column, name)
    rows = [None] * bool(parts[0].ndim)
    # Sequences are padded to the longest of a batch, so their length differs.
    steps = [None] * isinstance(spec, FixedLenSequenceFeature)
    shapes = [(*rows, *part.shape[len(rows) :]) for part in parts]
    if isinstance(column, np.ndarray | BytesColumn):
        shapes = [(*rows, *steps, *shapes[0][len(rows) + len(steps) :])]
    elif isinstance(column, Sparse):
        shapes[-1] = parts[-1].shape
    return [
        tf.TensorSpec(shape, tf.string if part.dtype == object else part.dtype)
        for shape, part in zip(shapes, parts, strict=True)
    ]


def _parts(column: Any, name: str = "") -> list[np.ndarray[Any, Any]]:
    """Return a column as arrays: the innermost values first."""
    if isinstance(column, np.ndarray):
        return [column]
    if isinstance(column, BytesColumn):
        return [array_of(column)]
    if isinstance(column, Ragged):
        first, last = int(column.row_splits[0]), int(column.row_splits[-1])
        return [*_parts(cut(column.values, first, last), name), column.row_splits - first]
    if isinstance(column, Sparse):
        return [*_parts(column.values), column.indices, np.array(column.dense_shape, np.int64)]
    raise ConfigError(
        f"column {name!r} is of type {type(column).__name__}, which does not become a tensor; "
        "leave it out of features, or let transform= turn it into another type"
    )


def _tensor(column: Any, parts: Iterator[Any]) -> Any:
    """Return the tensor of a column like this one, whose parts come next."""
    if isinstance(column, Ragged):
        values = _tensor(column.values, parts)
        # Ours are valid; checking them would be operations of the graph in each step.
        return tf.RaggedTensor.from_row_splits(values, next(parts), validate=False)
    if isinstance(column, Sparse):
        values = _tensor(column.values, parts)
        return tf.SparseTensor(next(parts), values, next(parts))
    return next(parts)


def _of_spec(tensor: Any, spec: Any) -> Any:
    """Return a ragged tensor in the form that TensorFlow gives a feature of this spec."""
    if isinstance(tensor, tf.SparseTensor) and isinstance(spec, SparseFeature):
        sizes = [spec.size] if isinstance(spec.size, int) else spec.size
        # The batch's shape is a tensor, so the graph does not know the sizes by itself.
        tensor.set_shape([None, *sizes])
    forms: dict[type, Callable[[Any], Any]] = {
        VarLenFeature: lambda ragged: ragged.to_sparse(),
        RaggedFeature: lambda ragged: ragged.with_row_splits_dtype(spec.row_splits_dtype),
    }
    if isinstance(tensor, tf.RaggedTensor) and type(spec) in forms:
        return forms[type(spec)](tensor)
    return tensor
