"""The keyword arguments of ``streamrec.open`` and ``mix``, for type checkers and editors.

They are the settings of :class:`~streamrec.config.StreamSettings`, which checks their values, in
the forms that users write. A test holds that the names are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

if TYPE_CHECKING:
    from streamrec.config.cache import Kept
    from streamrec.config.pack import Pack

__all__ = ["CacheKeywords", "Engine", "Features", "MixKeywords", "Source", "StreamKeywords"]

Source: TypeAlias = str | PathLike[str] | Sequence[str | PathLike[str]]
"""Shards: a URL, path, glob, ``{00000..00127}`` range, ``name@128``, or a list of them."""
Features: TypeAlias = (
    Mapping[str, Any] | tuple[Mapping[str, Any] | None, Mapping[str, Any] | None] | Literal["infer"]
)
"""Specs by feature name, a pair (context, sequence) of such mappings, or ``"infer"``."""
Function: TypeAlias = Callable[[Any], Any] | str
"""A function, or its name as ``module:function``."""
Bytes: TypeAlias = int | str
"""A number of bytes, or a text such as ``"256MiB"``."""
DTypes: TypeAlias = Any | list[Any] | Mapping[str, Any]
"""A dtype, or a list of dtypes, for all features that hold such numbers; or dtypes by feature."""
Engine: TypeAlias = Literal["process", "thread"]
"""Who reads for a plain ``for`` loop."""


class CacheKeywords(TypedDict, total=False):
    """The settings of a cache."""

    of: Kept
    """What it keeps: ``"ranges"`` of shards (the default), or decoded ``"batches"``."""
    folder: str | PathLike[str] | None
    size: Bytes | None


class StreamKeywords(TypedDict, total=False):
    """The settings of ``streamrec.open`` besides source, features and batch size."""

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
    map: Function | None
    transform: Function | None
    pack: Pack | None
    length_buckets: int | None
    check_crc: bool
    on_corrupt: Literal["raise", "skip", "quarantine"]
    corrupt_budget: float
    quarantine: str | PathLike[str] | None
    compression: Literal["auto", "none", "gzip", "zlib", "zstd", "GZIP", "ZLIB", ""] | None
    memory_budget: Bytes
    max_record_bytes: Bytes
    max_concurrency: int | Literal["auto"]
    prefetch: int | Literal["auto"]
    stall_timeout: float
    cache: Bytes | PathLike[str] | CacheKeywords | Mapping[str, Any] | None
    storage_options: Mapping[str, Any] | None
    rank: int | Literal["auto"]
    world_size: int | Literal["auto"]
    engine: Engine | None


class MixKeywords(StreamKeywords, total=False):
    """The settings of ``streamrec.mix`` besides components, features, weights and batch size."""

    exhausted: Literal["repeat", "stop", "rest"]
