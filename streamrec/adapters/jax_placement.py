"""Columns as global arrays on JAX's devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
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
