"""Feature specs, which say what to parse out of a record, with TensorFlow's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, overload

from streamrec.errors import ConfigError
from streamrec.formats.examples.defaults import (
    PARTITIONS,
    Partition,
    RowLengths,
    RowLimits,
    RowSplits,
    RowStarts,
    UniformRowLength,
    ValueRowIds,
    check_key,
    check_optional_key,
    feature_name,
    normal_default,
    normal_raw,
    normal_shape,
    normal_sides,
    normal_sizes,
    one_key,
)
from streamrec.formats.examples.dtypes import dtype_name
from streamrec.formats.examples.image_spec import Gives_co, Image, Spec
from streamrec.formats.examples.needs import ZLIB
from streamrec.values.columns import Arrays, Ragged, Sparse

if TYPE_CHECKING:
    from streamrec.config.keywords import Number, OtherDType, String
    from streamrec.formats.examples.image_spec import AnyDType, DenseColumn, Shape
    from streamrec.values.columns import BytesColumn


@dataclass(frozen=True)
class FixedLenFeature(Spec[Gives_co]):
    """A feature with the same number of values in every record.

    Args:
        shape: The shape of one record's values; ``()`` for one value; an int is one dimension.
        dtype: int64, float32, bytes, or what these can be narrowed to: a name, a NumPy or Python
            type, or a ``tf.DType``.
        default_value: The values of a record without the feature, as many as ``shape`` holds.
            ``None``: the feature is required.
        raw: The feature is one byte string of just the size of such an array, little-endian; its
            bytes are the values. ``default_value`` may then be bytes, too. ``"zlib"``: such a
            string, compressed by zlib, without a default.
        key: The feature's name in the records; ``None``: that of the column, which is the spec's
            key in the mapping.

    Raises:
        ConfigError: An argument is wrong.
    """

    shape: Any
    dtype: Any
    default_value: Any = None
    raw: bool | Literal["zlib"] = False
    key: str | None = None

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            shape: Shape,
            dtype: OtherDType,
            default_value: Any = None,
            raw: bool | Literal["zlib"] = False,
            key: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: FixedLenFeature[BytesColumn],
            shape: Shape,
            dtype: String,
            default_value: Any = None,
            *,
            key: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: FixedLenFeature[DenseColumn],
            shape: Shape,
            dtype: Number | Literal["complex64", "complex128"],
            default_value: Any = None,
            raw: bool | Literal["zlib"] = False,
            key: str | None = None,
        ) -> None: ...
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __post_init__(self) -> None:
        _check_raw(self.raw)
        check_optional_key("key", self.key)
        if self.raw == ZLIB and self.default_value is not None:
            raise ConfigError('a feature with raw="zlib" takes no default_value; leave it out')
        shape, dtype = normal_shape(self.shape), dtype_name(self.dtype, raw=bool(self.raw))
        normal = normal_raw if self.raw else normal_default
        self._set(shape=shape, dtype=dtype, default_value=normal(self.default_value, dtype, shape))
        if dtype == "bytes" and 0 in shape:
            raise ConfigError(
                f"a bytes feature of shape {shape} would hold no string; use VarLenFeature"
            )


@dataclass(frozen=True)
class FixedLenSequenceFeature(Spec[Gives_co]):
    """A feature with any number of items of the same shape: an array, short rows filled up.

    Args:
        shape: The shape of one item; ``()`` for one value. An item is this number of consecutive
            values in an Example's list, or a step of a SequenceExample's feature list.
        dtype: As in ``FixedLenFeature``.
        allow_missing: A record without the feature has no items. In an Example, and in the context
            of a SequenceExample, it has to be True.
        default_value: One value, with which short rows are filled up; ``None`` means 0 or ``b""``.
        raw: Each item is one byte string, as in ``FixedLenFeature``; short rows are filled up
            with 0.
        key: As in ``FixedLenFeature``.

    Raises:
        ConfigError: An argument is wrong.
    """

    shape: Any
    dtype: Any
    allow_missing: bool = False
    default_value: Any = None
    raw: bool = False
    key: str | None = None

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            shape: Shape,
            dtype: OtherDType,
            allow_missing: bool = False,
            default_value: Any = None,
            raw: bool = False,
            key: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: FixedLenSequenceFeature[BytesColumn],
            shape: Shape,
            dtype: String,
            allow_missing: bool = False,
            default_value: Any = None,
            *,
            key: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self: FixedLenSequenceFeature[DenseColumn],
            shape: Shape,
            dtype: Number | Literal["complex64", "complex128"],
            allow_missing: bool = False,
            default_value: Any = None,
            raw: bool = False,
            key: str | None = None,
        ) -> None: ...
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __post_init__(self) -> None:
        _check_bool("raw", self.raw)
        shape, dtype = normal_shape(self.shape), dtype_name(self.dtype, raw=self.raw)
        if self.raw and self.default_value is not None:
            raise ConfigError(
                "short rows of raw items are filled up with 0; leave out default_value"
            )
        default = None if self.raw else normal_default(self.default_value, dtype, ())
        self._set(shape=shape, dtype=dtype, default_value=default)
        _check_bool("allow_missing", self.allow_missing)
        check_optional_key("key", self.key)
        if 0 in shape:
            raise ConfigError(f"an item of shape {shape} would hold no value; use VarLenFeature")


@dataclass(frozen=True)
class VarLenFeature(Spec[Ragged]):
    """A feature with any number of values a record; a record without it has none.

    Args:
        dtype: As in ``FixedLenFeature``.
        key: As in ``FixedLenFeature``.

    Raises:
        ConfigError: No feature can have the dtype.
    """

    dtype: Any
    key: str | None = None

    if TYPE_CHECKING:

        def __init__(self, dtype: AnyDType, key: str | None = None) -> None: ...

    def __post_init__(self) -> None:
        self._set(dtype=dtype_name(self.dtype))
        check_optional_key("key", self.key)


@dataclass(frozen=True)
class RaggedFeature(Spec[Ragged]):
    """A feature with any number of values a record, in rows that other features describe.

    Args:
        dtype: As in ``FixedLenFeature``.
        value_key: The feature that holds the values; ``None``: the one of the spec's own name.
        partitions: The partitions of the values into rows, from the outermost to the innermost:
            ``RaggedFeature.RowSplits(key)``, ``RowLengths``, ``RowStarts``, ``RowLimits``,
            ``ValueRowIds`` and ``UniformRowLength(length)``.
        row_splits_dtype: Taken for TensorFlow's sake: int32 or int64. Row splits are always int64.
        validate: Taken for TensorFlow's sake. Partitions are always checked.
        key: The same as ``value_key``, by the name that other specs have for it.

    Raises:
        ConfigError: An argument is wrong.
    """

    RowSplits: ClassVar = RowSplits
    RowLengths: ClassVar = RowLengths
    RowStarts: ClassVar = RowStarts
    RowLimits: ClassVar = RowLimits
    ValueRowIds: ClassVar = ValueRowIds
    UniformRowLength: ClassVar = UniformRowLength

    dtype: Any
    value_key: str | None = None
    partitions: Any = ()
    row_splits_dtype: Any = "int32"
    validate: bool = False
    key: str | None = None

    def __post_init__(self) -> None:
        # One name for both from here on, so that equal specs compare equal.
        self._set(value_key=one_key(self.key, self.value_key), key=None)
        if not isinstance(self.partitions, list | tuple):
            raise ConfigError(f"partitions must be a list of partitions, not {self.partitions!r}")
        splits = dtype_name(self.row_splits_dtype)
        if splits not in ("int32", "int64"):
            raise ConfigError(f"row_splits_dtype must be 'int32' or 'int64', not {splits!r}")
        _check_bool("validate", self.validate)
        partitions = tuple(_partition(partition) for partition in self.partitions)
        self._set(dtype=dtype_name(self.dtype), partitions=partitions, row_splits_dtype=splits)


@dataclass(frozen=True)
class SparseFeature(Spec[Sparse]):
    """Values and their coordinates, each in a feature of its own.

    Args:
        index_key: The int64 feature with the values' places; a list with one for each dimension.
        value_key: The feature with the values.
        dtype: As in ``FixedLenFeature``.
        size: The size of the dimension; a list where ``index_key`` is one.
        already_sorted: Keep the coordinates in the order in which the record has them.

    Raises:
        ConfigError: An argument is wrong.
    """

    index_key: Any
    value_key: str
    dtype: Any
    size: Any
    already_sorted: bool = False

    def __post_init__(self) -> None:
        several = not isinstance(self.index_key, str)
        if several == isinstance(self.size, Integral) or (several and not self.index_key):
            raise ConfigError(
                f"index_key must be a name and size a number, or both must be lists of them, "
                f"not {self.index_key!r} and {self.size!r}"
            )
        self._set(dtype=dtype_name(self.dtype), size=normal_sizes(self.size))
        check_key("value_key", self.value_key)
        for key in self.index_keys:
            check_key("index_key", key)
        if len(self.index_keys) != len(self.size):
            raise ConfigError(
                f"index_key names {len(self.index_keys)} features, but size has {len(self.size)} "
                "numbers; give one size for each feature"
            )
        _check_bool("already_sorted", self.already_sorted)
        self._set(
            index_key=self.index_keys if several else self.index_key,
            size=self.size if several else self.size[0],
        )

    @property
    def index_keys(self) -> tuple[str, ...]:
        """The names of the features with the coordinates, one for each dimension."""
        return (self.index_key,) if isinstance(self.index_key, str) else tuple(self.index_key)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""
        return (self.size,) if isinstance(self.size, int) else tuple(self.size)


@dataclass(frozen=True)
class ShapedFeature(Spec[Arrays]):
    """A feature with an array in every record, whose shape other features hold.

    Args:
        shape: For each dimension, the name of an int64 feature with the size, or a size that all
            records have, as ``("height", "width", 3)``; or the name of one feature with all sizes.
        dtype: As in ``FixedLenFeature``, of numbers.
        value_key: The feature that holds the values; ``None``: the one of the spec's own name.
        raw: The values are one byte string, little-endian, as in ``FixedLenFeature``; ``"zlib"``:
            compressed by zlib.
        rank: The number of dimensions, where one feature holds all sizes.
        key: The same as ``value_key``, by the name that other specs have for it.

    Raises:
        ConfigError: An argument is wrong.
    """

    shape: Any
    dtype: Any
    value_key: str | None = None
    raw: bool | Literal["zlib"] = False
    rank: int | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        _check_raw(self.raw)
        dtype = dtype_name(self.dtype, raw=bool(self.raw))
        shape = normal_sides(self.shape, self.rank)
        self._set(dtype=dtype, shape=shape)
        self._set(value_key=one_key(self.key, self.value_key), key=None)
        for key in self.shape_keys:
            check_key("shape", key)
        if dtype == "bytes":
            raise ConfigError(
                "a ShapedFeature makes arrays of numbers, and its dtype is 'bytes'; give the dtype "
                "of the numbers and raw=True, or use RaggedFeature"
            )

    @property
    def shape_keys(self) -> tuple[str, ...]:
        """The names of the features that hold the shape."""
        sides = (self.shape,) if isinstance(self.shape, str) else self.shape
        return tuple(side for side in sides if isinstance(side, str))


FeatureSpec: TypeAlias = (
    FixedLenFeature
    | FixedLenSequenceFeature
    | VarLenFeature
    | RaggedFeature
    | SparseFeature
    | ShapedFeature
    | Image
)

KINDS: dict[str, Any] = {
    "fixed": FixedLenFeature,
    "sequence": FixedLenSequenceFeature,
    "varlen": VarLenFeature,
    "ragged": RaggedFeature,
    "sparse": SparseFeature,
    "shaped": ShapedFeature,
    "image": Image,
}
"""The classes of specs by their names in the plain form."""


_OURS = {"the spec": ("raw", "key"), "a partition": ()}
"""The arguments that TensorFlow's classes do not have."""


def feature_of(name: str, spec: FeatureSpec) -> str:
    """Return the name in the records of the feature that holds a column's values.

    Args:
        name: The column's name.
        spec: Its spec. A ``SparseFeature`` names its features itself: the name comes back.
    """
    if isinstance(spec, SparseFeature):
        return name
    key = spec.value_key if isinstance(spec, RaggedFeature | ShapedFeature) else spec.key
    return key or name


def as_specs(features: Mapping[str, Any]) -> dict[str, FeatureSpec]:
    """Return specs as instances of the classes here; they may be of TensorFlow's classes.

    Raises:
        ConfigError: The argument does not map names to specs, or a kind of spec is not supported.
    """
    if not isinstance(features, Mapping):
        raise ConfigError(
            "features must be a mapping from names to specs, such as "
            f"{{'label': FixedLenFeature((), 'int64')}}, not {type(features).__name__}"
        )
    return {feature_name(name): _spec(name, spec) for name, spec in features.items()}


def _spec(name: str, spec: Any) -> FeatureSpec:
    if isinstance(spec, FeatureSpec):
        return spec
    try:
        return _copy("the spec", KINDS, spec)  # type: ignore[no-any-return]
    except (ConfigError, AttributeError) as error:
        raise ConfigError(f"feature {name!r}: {error}") from None


def _copy(what: str, kinds: Mapping[str, Any], other: Any) -> Any:
    """Make an object of our class from another library's of the same name."""
    # By the class's name, so that TensorFlow need not be imported.
    by_name = {kind.__name__: kind for kind in kinds.values()}
    kind = by_name.get(type(other).__name__)
    if kind in (None, ShapedFeature, Image):  # TensorFlow has neither; Pillow has an Image
        example = f"; write {_example(other)}" if what == "the spec" else ""
        raise ConfigError(
            f"{what} must be one of {', '.join(by_name)}, not {type(other).__name__}{example}"
        )
    # Its fields have the same names as TensorFlow's, and only these are read.
    names = [field.name for field in fields(kind)]
    return kind(**{name: getattr(other, name) for name in names if name not in _OURS[what]})


def _example(other: Any) -> str:
    """Return a spec to write in place of a dtype's name, or of anything else."""
    name = other.__name__ if isinstance(other, type) else other
    known = {"float": "float32", "int": "int64", "bool": "int64", "str": "bytes", "bytes": "bytes"}
    dtype = known.get(name, name) if isinstance(name, str) else "float32"
    return f"streamrec.FixedLenFeature((), {dtype!r}) for one value of a record"


def _partition(partition: Any) -> Partition:
    if isinstance(partition, Partition):
        return partition
    return _copy("a partition", PARTITIONS, partition)  # type: ignore[no-any-return]


def _check_raw(value: Any) -> None:
    if not isinstance(value, bool) and value != ZLIB:
        raise ConfigError(f'raw must be True or False, or "zlib", not {value!r}')


def _check_bool(what: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{what} must be True or False, not {value!r}")
