"""Columns as JAX has them, batches as pytrees of them, and their way to the devices.

JAX cuts 64-bit numbers to 32 bits without a word, unless ``jax_enable_x64`` is on. So all that goes
to it is checked here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from streamrec.errors import ConfigError
from streamrec.pipeline.batch.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jax.sharding import Sharding


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
