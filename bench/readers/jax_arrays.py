"""Reads a stream as JAX's arrays on one device; needs JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from bench.readers.stream import import_all, opened, ready
from bench.readers.timing import Arguments, time_way
from streamrec.adapters import jax as adapter

if TYPE_CHECKING:
    from collections.abc import Iterable


def as_arrays(arguments: Arguments) -> Any:
    """Read with the adapter."""
    return adapter.as_arrays(opened(arguments), SingleDeviceSharding(jax.devices()[0]))


def alone(arguments: Arguments) -> Iterable[Any]:
    """Place arrays on the device."""
    return (jax.device_put(dict(batch)) for batch in ready(arguments))


def count(batch: Any) -> tuple[int, int]:
    """Count the labels with NumPy, which sees them without a copy."""
    labels = np.asarray(batch["label"])
    return len(labels), int(labels.sum())


WAYS = {"stream": opened, "as_arrays": as_arrays}
ALONE = {"alone": alone}

if __name__ == "__main__":
    jax.device_put(np.zeros(1)).block_until_ready()  # JAX's own start
    import_all()
    time_way(WAYS, count, ALONE)
