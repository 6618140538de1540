"""Feature specs: what to parse out of an Example, in TensorFlow's words.

A spec has a plain form too, for configuration files and the wire: a mapping with ``kind``,
``shape``, ``dtype`` and ``default``.
"""

from __future__ import annotations

import base64
import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from streamrec.errors import ConfigError
from streamrec.kernel.contract import ColumnPlan, DataType, Kind

__all__ = [
    "FeatureSpec",
    "FixedLenFeature",
    "VarLenFeature",
    "as_python",
    "as_specs",
    "describe",
    "from_description",
]

_BY_PYTHON_TYPE = {int: "int64", float: "float32", bytes: "bytes", str: "bytes", object: "bytes"}
_ALSO_BYTES = ("string", "str", "object")


@dataclass(frozen=True)
class FixedLenFeature:
    """A feature with the same number of values in every record.

    Args:
        shape: The shape of one record's values; ``()`` for one value; an int is one dimension.
        dtype: int64, float32 or bytes: a name, a NumPy or Python type, or a ``tf.DType``.
        default_value: What a record without the feature has: as many values as ``shape`` holds.
            ``None``: a record without it is an error.

    Raises:
        ConfigError: An argument is wrong.
    """

    shape: Any
    dtype: Any
    default_value: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _shape(self.shape))
        object.__setattr__(self, "dtype", _dtype(self.dtype))
        object.__setattr__(self, "default_value", self._default())
        if self.dtype == "bytes" and 0 in self.shape:
            raise ConfigError(f"shape {self.shape} holds no string; use VarLenFeature")

    def _default(self) -> Any:
        if self.default_value is None:
            return None
        values = [_value(value, self.dtype) for value in _flatten(self.default_value)]
        if len(values) != math.prod(self.shape):
            raise ConfigError(
                f"default_value holds {len(values)} values, but shape {self.shape} "
                f"takes {math.prod(self.shape)}"
            )
        return tuple(values) if self.shape else values[0]

    def plan(self, name: str) -> ColumnPlan:
        """The column that the feature of this name becomes."""
        default = self.default_value if self.shape else (self.default_value,)
        given = None if self.default_value is None else default
        return ColumnPlan(name, Kind.FIXED, DataType(self.dtype), self.shape, given)


@dataclass(frozen=True)
class VarLenFeature:
    """A feature with any number of values a record; a record without it has none.

    Args:
        dtype: int64, float32 or bytes: a name, a NumPy or Python type, or a ``tf.DType``.

    Raises:
        ConfigError: Another dtype.
    """

    dtype: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _dtype(self.dtype))

    def plan(self, name: str) -> ColumnPlan:
        """The column that the feature of this name becomes."""
        return ColumnPlan(name, Kind.VARLEN, DataType(self.dtype))


FeatureSpec: TypeAlias = FixedLenFeature | VarLenFeature


def as_specs(features: Mapping[str, Any]) -> dict[str, FeatureSpec]:
    """Take specs of TensorFlow's classes too.

    Raises:
        ConfigError: Not a mapping from names to specs, or a spec of a kind that is not supported.
    """
    if not isinstance(features, Mapping):
        raise ConfigError(
            "features is a mapping from names to specs, such as "
            f"{{'label': FixedLenFeature((), 'int64')}}, not {type(features).__name__}"
        )
    return {_name(name): _spec(name, spec) for name, spec in features.items()}


def describe(features: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The plain, JSON-able form of specs; ``None`` (raw records) stays ``None``.

    Raises:
        ConfigError: As :func:`as_specs`.
    """
    if features is None:
        return None
    return {name: _describe(spec) for name, spec in as_specs(features).items()}


def from_description(plain: Mapping[str, Any]) -> dict[str, FeatureSpec]:
    """Build specs from their plain form.

    Raises:
        ConfigError: A kind, key, dtype, shape or default is wrong; the error names the feature.
    """
    if not isinstance(plain, Mapping):
        raise ConfigError(f"features is a table of features, not {plain!r}")
    return {_name(name): _from_plain(name, spec) for name, spec in plain.items()}


def as_python(features: Mapping[str, Any]) -> str:
    """Specs as Python code, ready to paste below ``import streamrec as sr``."""
    lines = [f"    {name!r}: {_code(spec)},\n" for name, spec in as_specs(features).items()]
    return "features = {\n" + "".join(lines) + "}"


def _code(spec: FeatureSpec) -> str:
    if isinstance(spec, VarLenFeature):
        return f"sr.VarLenFeature({spec.dtype!r})"
    default = "" if spec.default_value is None else f", default_value={spec.default_value!r}"
    return f"sr.FixedLenFeature({spec.shape!r}, {spec.dtype!r}{default})"


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"a feature's name is a str, not {name!r}")
    return name


def _spec(name: str, spec: Any) -> FeatureSpec:
    if isinstance(spec, FixedLenFeature | VarLenFeature):
        return spec
    kind = type(spec).__name__
    try:
        if kind == "FixedLenFeature":
            return FixedLenFeature(spec.shape, spec.dtype, spec.default_value)
        if kind == "VarLenFeature":
            return VarLenFeature(spec.dtype)
    except (ConfigError, AttributeError) as error:
        raise ConfigError(f"feature {name!r}: {error}") from None
    raise ConfigError(
        f"feature {name!r}: the spec is a FixedLenFeature or a VarLenFeature, not {kind}"
    )


def _shape(shape: Any) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 0:
            raise ConfigError(
                f"shape is () or sizes from 0 up, not {shape!r}; "
                "for a number of values that varies use VarLenFeature"
            )
    return tuple(int(size) for size in sizes)


def _dtype(dtype: Any) -> str:
    """One of the three names that :class:`DataType` has."""
    name = _dtype_name(dtype)
    if name in _ALSO_BYTES or name.startswith(("bytes", "str")):
        return "bytes"
    names = [known.value for known in DataType]
    if name in names:
        return name
    near = difflib.get_close_matches(name, [*names, *_ALSO_BYTES], n=1)
    hint = f"did you mean {near[0]!r}?" if near else "convert the parsed column"
    raise ConfigError(f"dtype {name!r}: an Example holds int64, float32 and bytes; {hint}")


def _dtype_name(dtype: Any) -> str:
    if isinstance(dtype, type) and dtype in _BY_PYTHON_TYPE:
        return _BY_PYTHON_TYPE[dtype]
    dtype = getattr(dtype, "as_numpy_dtype", dtype)
    if isinstance(dtype, str):
        return dtype
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        return str(getattr(dtype, "name", dtype))


def _flatten(value: Any) -> list[Any]:
    if hasattr(value, "__array__"):
        value = np.asarray(value).tolist()
    if not isinstance(value, list | tuple):
        return [value]
    return [leaf for item in value for leaf in _flatten(item)]


def _value(value: Any, dtype: str) -> Any:
    """One default value as Python's own type for the dtype."""
    if dtype == "bytes" and isinstance(value, str | bytes):
        return value.encode() if isinstance(value, str) else bytes(value)
    if dtype == "int64" and isinstance(value, int) and -(2**63) <= value < 2**63:
        return int(value)
    if dtype == "float32" and isinstance(value, int | float) and _fits_float32(value):
        return float(value)
    raise ConfigError(f"default_value {value!r} is no {dtype}")


def _fits_float32(value: float) -> bool:
    return not math.isfinite(value) or abs(value) <= float(np.finfo(np.float32).max)


_KINDS = {"fixed": ("kind", "shape", "dtype", "default"), "varlen": ("kind", "dtype")}


def _describe(spec: FeatureSpec) -> dict[str, Any]:
    if isinstance(spec, VarLenFeature):
        return {"kind": "varlen", "dtype": spec.dtype}
    plain = {"kind": "fixed", "shape": list(spec.shape), "dtype": spec.dtype}
    if spec.default_value is not None:
        plain["default"] = _plain_default(spec.default_value)
    return plain


def _plain_default(value: Any) -> Any:
    """Strings as text where they are text; other bytes as a table with their base64."""
    if isinstance(value, tuple):
        return [_plain_default(item) for item in value]
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _from_plain(name: str, plain: Any) -> FeatureSpec:
    if not isinstance(plain, Mapping):
        raise ConfigError(f"feature {name!r}: a table with kind and dtype, not {plain!r}")
    kind = plain.get("kind", "fixed")
    _require(name, "kind", kind, _KINDS)
    for key in plain:
        _require(name, "key", key, _KINDS[kind])
    if "dtype" not in plain:
        raise ConfigError(f"feature {name!r}: the key 'dtype' is missing")
    try:
        if kind == "varlen":
            return VarLenFeature(plain["dtype"])
        default = _given_default(plain.get("default"))
        return FixedLenFeature(plain.get("shape", ()), plain["dtype"], default)
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"feature {name!r}: {error}") from None


def _require(name: str, what: str, word: Any, known: Iterable[str]) -> None:
    known = list(known)
    if word in known:
        return
    near = difflib.get_close_matches(str(word), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    raise ConfigError(f"feature {name!r}: there is no {what} {word!r}; {hint}")


def _given_default(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_given_default(item) for item in value]
    if isinstance(value, Mapping):
        return base64.b64decode(str(value.get("base64")), validate=True)
    return value
