"""Records for a simulation: Examples of given features, with values that are made up."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.datasets.sample_pictures import sample_pictures
from streamrec.errors import ConfigError
from streamrec.formats.examples.dtypes import HELD_AS, numpy_dtype
from streamrec.formats.examples.encode import encode_examples
from streamrec.formats.examples.image_spec import Image
from streamrec.formats.examples.specs import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    VarLenFeature,
    as_specs,
    feature_of,
)
from streamrec.kernel.contract import DataType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.values.columns import BytesColumn

DEFAULT_FEATURES: Mapping[str, Any] = {
    "id": FixedLenFeature((), "int64"),
    "label": FixedLenFeature((), "int64"),
    "image": Image(),
}
"""Records of about 100 KB, as those of ImageNet."""
STRING_BYTES = 32
LONGEST = 64
"""Most items of a feature that may have any number of them; their mean is half of it."""


def sample_records(features: Mapping[str, Any], number: int) -> BytesColumn:
    """Return serialized Examples, the same ones each time.

    Args:
        features: The specs by name.
        number: The number of records.

    Raises:
        ConfigError: No values can be made for a spec.
    """
    randomness = np.random.default_rng(0)
    specs = as_specs(features)
    named = {feature_of(name, spec): spec for name, spec in specs.items()}
    return encode_examples({name: _column(name, named[name], number, randomness) for name in named})


def _column(name: str, spec: Any, number: int, randomness: np.random.Generator) -> Any:
    if isinstance(spec, Image) and spec.shape is None:
        pictures = sample_pictures()
        return [pictures[row % len(pictures)] for row in range(number)]
    if isinstance(spec, FixedLenFeature) and spec.raw:
        size = math.prod(spec.shape) * numpy_dtype(spec.dtype).itemsize
        return [randomness.bytes(size) for _ in range(number)]
    if isinstance(spec, FixedLenFeature):
        return _values(spec.dtype, (number, *spec.shape), randomness)
    if isinstance(spec, VarLenFeature | FixedLenSequenceFeature) or (
        isinstance(spec, RaggedFeature) and not spec.partitions
    ):
        shape = spec.shape if isinstance(spec, FixedLenSequenceFeature) else ()
        lengths = randomness.integers(1, LONGEST + 1, number).tolist()
        return [_values(spec.dtype, (length, *shape), randomness) for length in lengths]
    raise ConfigError(
        f"feature {name!r} is {spec!r}, for which a simulation can make no values; name a local "
        "shard whose records it can repeat"
    )


def _values(dtype: str, shape: tuple[int, ...], randomness: np.random.Generator) -> Any:
    """Return values that every dtype of their kind can hold; of byte strings flat rows."""
    held = HELD_AS[dtype]
    if held is DataType.FLOAT32:
        return randomness.random(shape, np.float32)
    if held is DataType.INT64:
        return randomness.integers(0, 2 if dtype == "bool" else 100, shape)
    strings = [randomness.bytes(STRING_BYTES) for _ in range(math.prod(shape))]
    each = math.prod(shape[1:])
    if len(shape) == 1:
        return strings
    return [strings[row * each : (row + 1) * each] for row in range(shape[0])]
