"""The keyword arguments of ``streamrec.open`` and ``mix``, for type checkers and editors.

They are the settings of :class:`~streamrec.config.StreamSettings`, which checks their values, in
the forms that users write. A test holds that the names are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Protocol, Required, TypeAlias, TypedDict

if TYPE_CHECKING:
    import numpy as np

    from streamrec.config.cache_and_audit import Kept
    from streamrec.config.record_choice import Balance, Pack, Window


class TensorFlowDType(Protocol):
    """A ``tf.DType``."""

    @property
    def as_numpy_dtype(self) -> Any:
        """The NumPy type."""


class TorchDType(Protocol):
    """A ``torch.dtype``."""

    @property
    def is_floating_point(self) -> bool:
        """True for floats."""


class RecordInShard(Protocol):
    """A record as ``streamrec.which`` returns it."""

    @property
    def shard(self) -> str:
        """The shard's URL."""

    @property
    def record(self) -> int:
        """The record's number in the shard, from 0."""


Source: TypeAlias = str | PathLike[str] | Sequence[str | PathLike[str]]
"""Shards: a URL, path, glob, ``{00000..00127}`` range, ``name@128``, or a list of them."""
Features: TypeAlias = (
    Mapping[str, Any] | tuple[Mapping[str, Any] | None, Mapping[str, Any] | None] | Literal["infer"]
)
"""Specs by feature name, a pair (context, sequence) of such mappings, or ``"infer"``."""


class RandomFunction(Protocol):
    """A function that is given a random generator."""

    def __call__(self, columns: Any, /, *, rng: np.random.Generator) -> Any:
        """Return a mask, or columns."""


Function: TypeAlias = Callable[[Any], Any] | RandomFunction | str
"""A function, or its name as ``module:function``."""
Bytes: TypeAlias = int | str
"""A number of bytes, or a text such as ``"256MiB"``."""
NumberName: TypeAlias = Literal[
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64",
]  # fmt: skip
Number: TypeAlias = "type[int | float | np.generic] | NumberName"
"""A dtype of numbers: a name, or a Python or NumPy type."""
String: TypeAlias = "type[bytes | str | np.object_] | Literal['bytes', 'string', 'str', 'object']"
"""The dtype of byte strings."""
OtherDType: TypeAlias = "np.dtype[Any] | TensorFlowDType | TorchDType"
"""A dtype of NumPy, TensorFlow or PyTorch, whose type does not tell numbers from strings."""
DType: TypeAlias = "Number | OtherDType"
"""A dtype to which numbers can be narrowed."""
DTypes: TypeAlias = "DType | list[DType] | Mapping[str, DType]"
"""A dtype, or a list of dtypes, for all features that hold such numbers; or dtypes by feature."""
Engine: TypeAlias = Literal["process", "thread"]
"""Who reads for a plain ``for`` loop."""


class CacheKeywords(TypedDict, total=False):
    """The settings of a cache."""

    of: Kept
    """What it keeps: ``"ranges"`` of shards (the default), or these and decoded ``"pictures"`` or
    what ``map`` makes (``"mapped"``), or decoded ``"batches"``."""
    folder: str | PathLike[str] | None
    size: Bytes | None
    key: str | None
    """The name of what ``map`` makes, for ``"mapped"``; by default a digest of the function."""


class AuditKeywords(TypedDict, total=False):
    """The settings of an audit log."""

    url: Required[str | PathLike[str]]
    every: float | str
    storage_options: Mapping[str, Any] | None


Audit: TypeAlias = "str | PathLike[str] | AuditKeywords | Mapping[str, Any]"
"""The directory of an audit log, or its settings."""


class ColumnKeywords(TypedDict, total=False):
    """The settings of ``streamrec.open`` that leave each feature the column of its spec."""

    rename: Mapping[str, str] | Mapping[str, Mapping[str, str]] | None
    dtypes: DTypes | None
    shuffle: bool
    seed: int
    shuffle_window: Bytes
    lanes: int | Literal["auto"]
    index: bool | str | PathLike[str] | None
    epochs: int | None
    steps_per_epoch: int | None
    remainder: Literal["keep", "drop", "pad"] | None
    ordered: bool
    filter: Function | None
    length_buckets: int | None
    balance: str | Balance | None
    check_crc: bool
    on_corrupt: Literal["raise", "skip", "quarantine"]
    corrupt_budget: float
    quarantine: str | PathLike[str] | None
    exclude: (
        str
        | PathLike[str]
        | Sequence[tuple[str, int] | RecordInShard]
        | Mapping[str, str | PathLike[str] | Sequence[str | int]]
        | None
    )
    compression: Literal["auto", "none", "gzip", "zlib", "zstd", "GZIP", "ZLIB", ""] | None
    memory_budget: Bytes
    max_record_bytes: Bytes
    max_bytes: Bytes
    max_pixels: int | Literal["auto"]
    max_concurrency: int | Literal["auto"]
    fetch_processes: int | Literal["auto"]
    prefetch: int | Literal["auto"]
    stall_timeout: float
    cache: Bytes | PathLike[str] | CacheKeywords | Mapping[str, Any] | None
    storage_options: Mapping[str, Any] | None
    rank: int | tuple[int, int] | Literal["auto"]
    world_size: int | Literal["auto"]
    engine: Engine | None
    restart: bool
    audit: Audit | None


class StreamKeywords(ColumnKeywords, total=False):
    """The settings of ``streamrec.open`` besides source, features and batch size."""

    split: str | Mapping[str, str] | None
    map: Function | None
    transform: Function | None
    pack: Pack | None
    window: Window | None


class MixColumnKeywords(ColumnKeywords, total=False):
    """The settings of ``streamrec.mix`` that leave each feature the column of its spec."""

    exhausted: Literal["repeat", "stop", "rest"]


class MixKeywords(StreamKeywords, MixColumnKeywords, total=False):
    """The settings of ``streamrec.mix`` besides components, features, weights and batch size."""
