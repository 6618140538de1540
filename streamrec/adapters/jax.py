"""With JAX: a stream's batches as global arrays over a mesh.

Importing this file makes ``Batch`` a pytree, so that functions under ``jax.jit`` take batches.

JAX cuts 64-bit numbers to 32 bits without a word, unless ``jax_enable_x64`` is on. So all that goes
to it is checked here.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.adapters.passes import Pairs, check_stream, pick
from streamrec.errors import ConfigError, MalformedPosition, StreamrecError
from streamrec.masking import type_of
from streamrec.pipeline.batch.batch import Batch
from streamrec.plan.state.fingerprint import RankSummary, check_agreement
from streamrec.streams import handle
from streamrec.streams.ranks import Rank
from streamrec.suggestions import needs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from jax.sharding import Sharding

    from streamrec.adapters.passes import Names
    from streamrec.streams.stream import Stream

with needs("streamrec.adapters.jax", "jax"):
    import jax


__all__ = ["GlobalBatches", "agree", "as_arrays", "rank_of"]

log = logging.getLogger("streamrec")


def as_arrays(
    stream: Stream,
    sharding: Sharding,
    inputs: Names | None = None,
    targets: Names | None = None,
    *,
    restart: bool = False,
) -> GlobalBatches:
    """Return the stream's batches with global arrays in place of NumPy's.

    A batch has the rows of all ranks: each column is one array ``[batch_size * world_size, ...]``
    over the sharding's devices, and so is ``batch.mask``. ``batch.origin``, ``epoch`` and
    ``next_position`` describe the rows of this process. When a batch is delivered, the next one is
    already on its way to the devices.

    With ``targets``, ``(inputs, targets)`` stands for a batch, and ``(inputs, targets, mask)``
    where the stream has masks; the other features do not go to the devices.

    If ``jax_enable_x64`` is off, 64-bit columns are copied and converted to 32 bits, as JAX does;
    but a value that does not fit is an error. All other columns are copied only by JAX, to the
    devices; on a CPU, columns of more than 64 KiB are not copied at all.

    Args:
        stream: With a ``batch_size``. Its rank and world size are those of :func:`rank_of`.
        sharding: The places of a batch's rows, as ``NamedSharding(mesh, PartitionSpec("data"))``.
        inputs: The name of a feature, which gives its array; or several names, or a mapping from
            other names to them, which give a dict of arrays.
        targets: As the inputs; ``None``: no pairs.
        restart: True: each loop begins at the beginning of the run, even after a ``break``, as an
            evaluation needs.

    Raises:
        ConfigError: ``inputs`` or ``targets`` is left out, there is no feature of a name, or
            ``sharding`` is something else. The stream's rank is not that of the sharding, the
            processes do not read one stream (see :func:`agree`), or JAX has no arrays for a column:
            bytes, rows or pictures of different sizes, 64-bit numbers that do not fit. The first
            such batch raises it.
    """
    check_stream(stream, "as_arrays")
    if not isinstance(sharding, jax.sharding.Sharding):
        raise ConfigError(
            f"as_arrays takes a sharding, not {type_of(sharding)}; give it such as "
            "NamedSharding(mesh, PartitionSpec('data'))"
        )
    return GlobalBatches(stream, sharding, Pairs.of_arguments(inputs, targets), restart=restart)


def rank_of(sharding: Sharding) -> Rank:
    """Return the rank and world size that this process reads for a sharding of batches.

    The ranks are the different parts of the rows that processes hold, in the order of the rows.
    Processes that hold the same rows, as a model's shards do, have one rank.

    Args:
        sharding: As for :func:`as_arrays`.

    Raises:
        ConfigError: The parts overlap or differ in size, or this process has none.
    """
    by_process = _parts(sharding)
    parts = sorted(set(by_process.values()))
    ours = by_process.get(jax.process_index())
    if ours is None:
        raise ConfigError(
            f"no device of the sharding belongs to process {jax.process_index()}; make the mesh of "
            "jax.devices(), or read no stream in this process"
        )
    if len({len(part) for part in parts}) > 1 or len(set().union(*parts)) < sum(map(len, parts)):
        raise ConfigError(
            "the sharding gives processes parts of the rows that overlap or differ in size; make a "
            "mesh in which each process has the same rows as another, or as many of its own"
        )
    return Rank(parts.index(ours), len(parts))


def _parts(sharding: Sharding) -> dict[int, tuple[int, ...]]:
    """Return the first rows of the pieces that each process holds, by process."""
    size = sharding.num_devices
    dimensions = max(1, len(getattr(sharding, "spec", ())))
    starts: dict[int, set[int]] = {}
    indices: Mapping[Any, Any] = sharding.devices_indices_map((size,) * dimensions)
    for device, index in indices.items():
        rows = index[0] if index else slice(None)
        # The first row of a piece names it, since all pieces are of one length.
        starts.setdefault(device.process_index, set()).add(rows.indices(size)[0])
    return {process: tuple(sorted(rows)) for process, rows in starts.items()}


class GlobalBatches:
    """The batches of a stream as global arrays, for ``for``; :func:`as_arrays` makes it.

    Iterating, ``len`` and the state are the stream's own.

    Args:
        stream: With a ``batch_size``.
        sharding: The places of a batch's rows.
        pairs: The names of inputs and targets; ``None``: all features, in a batch.
        restart: Begin each loop at the beginning of the run.
    """

    def __init__(
        self, stream: Stream, sharding: Sharding, pairs: Pairs | None = None, *, restart: bool
    ) -> None:
        self._stream = stream
        self._sharding = sharding
        self._pairs = pairs
        self._restarts = restart
        self._rank = rank_of(sharding)
        self._placement = Placement(sharding, self._rank.world_size)
        self._is_agreed = False
        self._is_logged = False
        self._ahead: tuple[Batch | None, Any] = (None, None)
        """The batch after the one that was delivered last, and its global arrays."""

    def __repr__(self) -> str:
        return f"<arrays of {self._stream!r}>"

    def __len__(self) -> int:
        return len(self._stream)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> GlobalBatches:
        # First, since it refuses before anything moves.
        iter(self._stream)
        if self._restarts:
            self._stream.restart()
        # Between two loops a process may have been moved, so they agree in each.
        self._is_agreed = False
        return self

    def __next__(self) -> Any:
        mark = handle.of(self._stream).mark()
        try:
            batch = self._next()
        except (StopIteration, StreamrecError):
            raise
        except BaseException:  # the stream's batch may have been taken for nobody
            handle.of(self._stream).go_back(mark)
            raise
        return self._pairs.of(batch, batch.mask) if self._pairs else batch

    def _next(self) -> Batch:
        # Two: the one to give, and the one after it, whose transfer then overlaps the step.
        coming = self._stream.peek(2)
        if not coming:
            next(self._stream)  # raises: the run ends, or reading on went wrong
        batch, *following = coming
        arrays: Batch = self._ahead[1]
        if self._ahead[0] is not batch:
            self._check(batch)
            arrays = self._global(batch)
        self._ahead = (None, None)
        for other in following:
            with suppress(ConfigError):  # raised when it is that batch's turn
                self._ahead = other, self._global(other)
        # Taken only now: after an error above, the batch is still there.
        next(self._stream)
        return arrays

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch delivered: plain JSON-able data."""
        return self._stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on from a state, or from those of all ranks for another world size.

        Raises:
            StateError: As ``Stream.load_state_dict``.
        """
        self._stream.load_state_dict(state)
        self._is_agreed = False

    def get_state(self) -> bytes:
        """Return the state as Grain's ``DataLoader`` iterators do: JSON, encoded."""
        return json.dumps(self.state_dict()).encode()

    def set_state(self, state: bytes) -> None:
        """Go on from a state of :meth:`get_state`.

        Raises:
            StateError: As ``Stream.load_state_dict``.
        """
        try:
            plain = json.loads(state)
        except (TypeError, ValueError, RecursionError):
            raise MalformedPosition(
                f"{type_of(state)} is not a state that get_state() returned; give its bytes, and "
                "what state_dict() returned to load_state_dict()"
            ) from None
        self.load_state_dict(plain)

    def _check(self, batch: Batch) -> None:
        """See to it that the processes read one stream, each the part that the sharding says."""
        if self._stream.fingerprint.global_batch is None:
            raise ConfigError("the stream gives single records; open it with a batch_size")
        if jax.process_count() > 1 and not self._is_agreed:
            agree(self._stream)
        self._is_agreed = True
        # The rank that the stream has read, and not the one that it was asked for.
        position = batch.next_position
        if (position.rank, position.world_size) != self._rank:
            raise ConfigError(
                f"the stream is rank {position.rank} of {position.world_size}, but by the sharding "
                f"this process has the rows of rank {self._rank.rank} of {self._rank.world_size}; "
                "open the stream with the rank and world_size of jax.rank_of(sharding)"
            )

    def _global(self, batch: Batch) -> Batch:
        names = self._pairs.features if self._pairs else batch
        local = {name: self._local(name, pick(batch, name)) for name in names}
        masks = [] if batch.mask is None else [self._local("mask", batch.mask)]
        placed = self._placement.place([*local.values(), *masks])
        # Not strict: the mask is placed after the columns.
        columns = dict(zip(local, placed, strict=False))
        self._is_logged = True
        # The rows of all ranks: a global array has them all.
        rows = len(batch) * self._rank.world_size
        return replace(batch, columns=columns, rows=rows, mask=placed[-1] if masks else None)

    def _local(self, name: str, column: Any) -> Any:
        """Return the rows of this process as an array that JAX has a dtype for."""
        values = of_jax(name, column)
        if values.dtype != column.dtype and not self._is_logged:
            log.info("%s: %s is delivered as %s (jax_enable_x64)", name, column.dtype, values.dtype)
        _check_shape(name, self._placement.shape(values), self._sharding)
        return values


def _check_shape(name: str, shape: tuple[int, ...], sharding: Sharding) -> None:
    try:
        sharding.shard_shape(shape)
    except ValueError as error:
        raise ConfigError(
            f"column {name!r} of shape {shape} does not fit the sharding: {error}; the devices "
            'must divide a batch, and the last one too: give another batch_size, or remainder="pad"'
        ) from None


# -- agreement -------------------------------------------------------------------------------------


def agree(stream: Stream) -> None:
    """Check that all processes read one stream, before the first batch.

    Call it on every process of JAX, with the stream open; :func:`as_arrays` does. If they disagree,
    all of them raise the same error.

    Args:
        stream: Open: in its ``with`` or ``async with`` block.

    Raises:
        ConfigError: The streams differ; the message says in what.
    """
    from jax.experimental import multihost_utils

    # JAX gathers arrays alone, so the text goes as bytes.
    texts = gather(handle.of(stream).summary().to_json(), multihost_utils.process_allgather)
    check_agreement([RankSummary.from_json(text) for text in texts])


def gather(text: str, allgather: Callable[[Any], Any]) -> list[str]:
    """Gather the texts of all processes by a collective that takes arrays of one shape only.

    Args:
        text: Of this process.
        allgather: From an array to those of all processes, stacked.
    """
    data = np.frombuffer(text.encode(), np.uint8)
    # First the lengths: a collective takes arrays of one shape from all.
    sizes = np.asarray(allgather(np.array([len(data)], np.int32))).reshape(-1)
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: len(data)] = data
    rows = np.asarray(allgather(padded)).reshape(len(sizes), -1)
    return [bytes(row[:size]).decode() for row, size in zip(rows, sizes.tolist(), strict=True)]


SMALL = 1 << 16
"""Bytes of a column that are copied in less time than ``jax.device_put`` spends on a column."""


class Placement:
    """The way of a batch's columns to the devices of a sharding.

    Args:
        sharding: The places of a batch's rows.
        world_size: The number of ranks that a batch's rows are divided among.
    """

    def __init__(self, sharding: Sharding, world_size: int) -> None:
        self._sharding = sharding
        self._world_size = world_size
        self._copied: Any = jax.jit(
            lambda columns: columns, in_shardings=sharding, out_shardings=sharding
        )
        self._last: list[object] = []
        """The shapes and dtypes of the small columns that came last."""

    def shape(self, column: np.ndarray[Any, Any]) -> tuple[int, ...]:
        """Return the shape of the global array of a column."""
        return len(column) * self._world_size, *column.shape[1:]

    def place(self, columns: Sequence[np.ndarray[Any, Any]]) -> list[Any]:
        """Return global arrays of the columns that hold this process's rows."""
        # device_put takes whole arrays, and each process has its own rows alone.
        if jax.process_count() > 1:
            make: Any = jax.make_array_from_process_local_data
            return [make(self._sharding, column, self.shape(column)) for column in columns]
        if self._sharding.num_devices > 1:
            return self._put(columns)
        is_small = [column.nbytes <= SMALL for column in columns]
        small = iter(self._copy([c for c, small in zip(columns, is_small, strict=True) if small]))
        large = iter(
            self._put([c for c, small in zip(columns, is_small, strict=True) if not small])
        )
        return [next(small if one else large) for one in is_small]

    def _put(self, columns: Sequence[np.ndarray[Any, Any]]) -> list[Any]:
        """Place all columns by one call, which takes half of the time of a call for each."""
        placed: list[Any] = jax.device_put(list(columns), self._sharding)
        return placed

    def _copy(self, columns: list[np.ndarray[Any, Any]]) -> list[Any]:
        """Place columns as the arguments of a compiled function, which JAX is fastest at.

        It is compiled for shapes that came twice: the last batch is not worth it.
        """
        shapes: list[object] = [(column.shape, column.dtype) for column in columns]
        again, self._last = shapes == self._last, shapes
        config: Any = jax.config  # its settings are attributes that no type names
        if not again or config.jax_disable_jit:
            return self._put(columns)
        with jax.transfer_guard_host_to_device("allow"):  # the transfer is meant
            placed: list[Any] = self._copied(columns)
        return placed


def of_jax(name: str, column: Any) -> np.ndarray[Any, Any]:
    """Return a column as an array that JAX takes unchanged, copied where 64 bits become 32.

    Raises:
        ConfigError: JAX has no array for it.
    """
    if not isinstance(column, np.ndarray) or column.dtype.kind not in _KINDS:
        raise ConfigError(
            f"column {name!r} is {_kind_of(column)}, which JAX has no array for; leave it out "
            "of features, or let transform= turn it into numbers of one shape"
        )
    return column.astype(_narrow(name, column), copy=False)


_KINDS = "biufcV"
"""The kinds of NumPy's dtypes that JAX has, ``V`` for those of ml_dtypes."""


def _kind_of(column: Any) -> str:
    if isinstance(column, np.ndarray):
        return f"of dtype {column.dtype}"
    return f"of type {type(column).__name__}"


def _narrow(name: str, column: np.ndarray[Any, Any]) -> np.dtype[Any]:
    """Return the dtype that JAX gives a column's values.

    Raises:
        ConfigError: They do not fit into it.
    """
    dtype: np.dtype[Any] = np.dtype(jax.dtypes.canonicalize_dtype(column.dtype))
    if dtype != column.dtype and column.size:
        limits = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
        sizes = np.abs(column[np.isfinite(column)]) if dtype.kind in "fc" else column
        for value in (sizes.min(initial=0), sizes.max(initial=0)):
            if not limits.min <= value <= limits.max:
                raise ConfigError(
                    f"column {name!r} holds {value}, which does not fit into {dtype}, and "
                    f'jax_enable_x64 is off; set it by jax.config.update("jax_enable_x64", True)'
                )
    return dtype


# -- batches as pytrees ----------------------------------------------------------------------------


def _flatten(batch: Batch) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """Return the columns and the mask, which is all that JAX sees of a batch, and the names.

    NumPy's 64-bit columns are checked here: JAX would cut them without a word.
    """
    for name, column in batch.items():
        if isinstance(column, np.ndarray) and column.dtype.kind in _KINDS:
            _narrow(name, column)
    return (*batch.values(), batch.mask), tuple(batch)


def _flatten_with_keys(batch: Batch) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    children, names = _flatten(batch)
    keys = *map(jax.tree_util.DictKey, names), jax.tree_util.GetAttrKey("mask")
    return tuple(zip(keys, children, strict=True)), names


def _unflatten(names: tuple[str, ...], children: Iterable[Any]) -> Batch:
    """Make a batch that has no origin, epoch and position: under ``jax.jit`` they would be stale.

    It has a length where all columns agree on it, as those of a part of a batch do.
    """
    *columns, mask = children
    shapes = [getattr(column, "shape", ()) for column in columns]
    lengths = {shape[0] if shape else None for shape in shapes}
    rows = {"rows": lengths.pop()} if len(lengths) == 1 and None not in lengths else {}
    # Without __init__: JAX unflattens with tracers and placeholders in place of arrays.
    batch, fields = object.__new__(Batch), {"columns": dict(zip(names, columns, strict=True))}
    for name, value in {**fields, "mask": mask, **rows}.items():
        object.__setattr__(batch, name, value)
    return batch


jax.tree_util.register_pytree_with_keys(Batch, _flatten_with_keys, _unflatten, _flatten)
