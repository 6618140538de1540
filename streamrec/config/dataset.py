"""The settings of a dataset and of a stream over it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from streamrec.config.cache_and_audit import (
    AuditSettings,
    CacheSettings,
    cache_in_full,
    log_in_full,
    read_audit,
    read_cache,
)
from streamrec.config.consistency import CHECKS
from streamrec.config.lazy_settings import LazySettings
from streamrec.config.places import HALF_CHARACTER, has_half_character
from streamrec.config.plain_values import (
    AUTO,
    NONE,
    Kind,
    anything,
    byte_count,
    dict_of,
    either,
    flag,
    integer,
    list_of,
    number,
    one_of,
    positive,
    positive_number,
    text,
)
from streamrec.config.record_choice import (
    Balance,
    Pack,
    Window,
    excluded_in_full,
    plain_balance,
    plain_pack,
    plain_window,
    read_balance,
    read_excluded,
    read_pack,
    read_rename,
    read_window,
    split_parts,
)
from streamrec.masking import Hidden

if TYPE_CHECKING:
    from pydantic import (
        AfterValidator,
        BeforeValidator,
        Field,
        NonNegativeInt,
        PositiveFloat,
        PositiveInt,
    )

    from streamrec.config.validation import Bytes


MIB = 1 << 20
LEAST_BUDGET = 8 * MIB
"""Bytes of the smallest memory budget."""
DEFAULT_LANES = 48
"""Tens of lanes hide the store's latency; 48 is divisible by 2, 3, 4, 6, 8, 12, 16 and 24 ranks."""
MOST_OPEN_SHARDS = 144
"""The most shards that all lanes of a shuffle by shard have open together (or one for each lane, if
there are more lanes). A batch draws records from each of them. Three for each of 48 lanes."""
FEWEST_OPEN_SHARDS = 16
"""The fewest open shards. A small window has no more, as their read-ahead would take more memory
than the window itself."""
WINDOW_A_SHARD = MIB // 2
"""Bytes of the shuffle window for each open shard, between these two numbers."""

Compression: TypeAlias = Literal["none", "gzip", "zlib", "zstd"]

Function: TypeAlias = Callable[..., Any] | str
"""A function of the user, or its name as ``module:function``."""

_FUNCTION = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")


def _none_if_infinite(number: object) -> object:
    return None if number == math.inf else number


def _none_if_false(index: object) -> object:
    # TOML has no null, for which these two stand.
    return None if index is False or index == "" else index


def compression_name(name: object) -> Any:
    """Return our name of a compression; TensorFlow's are ``"GZIP"``, ``"ZLIB"`` and ``""``."""
    return (name or "none").lower() if name is None or isinstance(name, str) else name


def large_enough(budget: int | str) -> int | str:
    """Check that a memory budget is not below the least that anything can be read with."""
    if isinstance(budget, int) and budget < LEAST_BUDGET:
        raise ValueError(
            "is less than the 8 MiB that one range and one batch need; give 8 MiB or more"
        )
    return budget


def _no_buffer(shuffle: object) -> object:
    # In tf.data shuffle takes a number of records: True would be read from it in silence.
    if isinstance(shuffle, int) and not isinstance(shuffle, bool):
        raise ValueError(  # noqa: TRY004 - pydantic passes on no other
            f"is {shuffle}, but must be True or False; give shuffle=True, and the size of the "
            "window as shuffle_window, in bytes"
        )
    return shuffle


def _name_shards(source: str | list[str] | dict[str, Any]) -> Any:
    """Check that a source is not empty."""
    parts = list(source.values()) if isinstance(source, dict) else [source]
    if not parts or not all(part and all(part) for part in parts):
        raise ValueError("names no shard; give a URL, a glob or a list of them")
    if isinstance(source, dict) and not all(source):
        raise ValueError("has a component without a name; give each component one")
    if any(has_half_character(text) for part in parts for text in part):
        raise ValueError(f"holds {HALF_CHARACTER}")
    return source


def _no_autotune(number: object) -> object:
    if number == -1:
        raise ValueError('is -1, as tf.data.AUTOTUNE; the default "auto" does that: leave it out')
    return number


def _one_split(split: object) -> object:
    if isinstance(split, list | tuple) and all(isinstance(each, str) for each in split):
        raise ValueError(
            f"is {split!r}, but must be one text; give split={'+'.join(split)!r} for one stream of "
            "them all, or open a stream for each"
        )
    if type(split).__module__.startswith("tensorflow_datasets."):
        raise ValueError(
            f"is a {type(split).__name__}, but must be a text that says the same, such as "
            "'train[:90%]'"
        )
    return split


def _split(split: Any) -> Any:
    """Check the text of a split, or that of each component of a mix."""
    for part in split.values() if isinstance(split, dict) else [split]:
        if part is not None:
            split_parts(part)
    return split


def _from_the_start(weights: object) -> object:
    stages = [(0, weights)] if isinstance(weights, dict) else weights
    if not isinstance(stages, list):
        return stages
    # A file has no tuples, and the strict validation of Python's values takes no list for one.
    return [tuple(stage) if isinstance(stage, list) else stage for stage in stages]


def _function(function: object) -> object:
    if function is None or callable(function):
        return function
    if not isinstance(function, str) or not _FUNCTION.fullmatch(function):
        raise ValueError(f'is {function!r} but must be a function, or "module:function"')
    return function


def _plain_stage(stage: Any) -> tuple[int, dict[str, float]]:
    if type(stage) not in (list, tuple) or len(stage) != 2:
        raise ValueError
    return integer(0)(stage[0]), dict_of(number(0))(stage[1])


_TEXTS = either(text, list_of(text))
_FUNCTION_OR_NONE = either(NONE, _function)
_SIZE_OR_AUTO = either(AUTO, byte_count(1))
_COUNT_OR_AUTO = either(AUTO, positive)
_COMPRESSIONS = one_of("auto", "none", "gzip", "zlib", "zstd")


_KINDS: Mapping[str, Kind] = {
    "source": lambda source: _name_shards(either(_TEXTS, dict_of(_TEXTS))(source)),
    "features": either(NONE, one_of("infer"), dict_of(anything)),
    "split": lambda split: _split(either(NONE, text, dict_of(text))(split)),
    "rename": either(NONE, dict_of(text), dict_of(dict_of(text))),
    "dtypes": either(NONE, _TEXTS, dict_of(text)),
    "batch_size": either(NONE, positive),
    "shuffle": flag,
    "seed": integer(0),
    "shuffle_window": byte_count(0),
    "lanes": either(AUTO, integer(1, 1 << 16)),
    "index": lambda index: either(NONE, one_of(True), text)(_none_if_false(index)),
    "epochs": either(NONE, positive),
    "steps_per_epoch": either(NONE, positive),
    "remainder": one_of(None, "keep", "drop", "pad"),
    "weights": either(NONE, list_of(_plain_stage)),
    "exhausted": one_of("repeat", "stop", "rest"),
    "ordered": flag,
    "filter": _FUNCTION_OR_NONE,
    "map": _FUNCTION_OR_NONE,
    "transform": _FUNCTION_OR_NONE,
    "pack": either(NONE, plain_pack),
    "window": either(NONE, plain_window),
    "length_buckets": either(NONE, integer(2, 4096)),
    "balance": either(NONE, plain_balance),
    "check_crc": flag,
    "on_corrupt": one_of("raise", "skip", "quarantine"),
    "corrupt_budget": integer(0),
    "quarantine": either(NONE, text),
    "exclude": either(NONE, read_excluded),
    "compression": lambda name: _COMPRESSIONS(compression_name(name)),
    "memory_budget": either(AUTO, byte_count(LEAST_BUDGET)),
    "max_record_bytes": _SIZE_OR_AUTO,
    "max_bytes": _SIZE_OR_AUTO,
    "max_pixels": _COUNT_OR_AUTO,
    "max_concurrency": _COUNT_OR_AUTO,
    "fetch_processes": either(AUTO, integer(0, 64)),
    "prefetch": _COUNT_OR_AUTO,
    "stall_timeout": positive_number,
    "cache": either(NONE, read_cache),
    "storage_options": either(NONE, lambda options: Hidden(dict_of(anything)(options))),
}


class DatasetSettings(LazySettings):
    """The settings of one dataset: the source, the order and the batches; a daemon has them too."""

    source: Annotated[str | list[str] | dict[str, str | list[str]], AfterValidator(_name_shards)]
    """A URL, glob, ``{00000..00127}`` range, ``name@128``, or a list of them; for a mix, a mapping
    with one of these for each component by its name."""
    features: dict[str, Any] | Literal["infer"] | None = None
    """Specs in their plain form (``formats.descriptions``), or ``None`` for raw records; with
    ``split``, ``None`` stands for the features of the folder."""
    split: Annotated[
        str | dict[str, str] | None, BeforeValidator(_one_split), AfterValidator(_split)
    ] = None
    """The splits to read of a TFDS folder, which the source then names, as in
    ``"train[:90%]+validation"``; for a mix, one text or one for each component by its name."""
    rename: Annotated[
        dict[str, str] | dict[str, dict[str, str]] | None, BeforeValidator(read_rename)
    ] = None
    """New names of features by their names in the records, as ``features`` then name them; for a
    mix, such a mapping for each component whose names differ."""
    dtypes: str | list[str] | dict[str, str] | None = None
    """Narrower dtypes for all features that hold such numbers, or by feature."""
    batch_size: PositiveInt | None = None
    """Records per rank and batch; ``None``: single records."""
    shuffle: Annotated[bool, BeforeValidator(_no_buffer)] = False
    """True: records come in a random order, another one in each epoch: shards (with an index, parts
    of them) are permuted, and then the records in windows of ``shuffle_window``."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    """The seed of all that is random; equal on all ranks."""
    shuffle_window: Annotated[Bytes, Field(ge=0)] = 256 * MIB
    """Bytes, as a number or as ``"256MiB"``, of all lanes' windows together: ``shuffle`` permutes
    the records inside a window."""
    lanes: Annotated[
        Annotated[int, Field(gt=0, le=1 << 16)] | Literal["auto"], BeforeValidator(_no_autotune)
    ] = "auto"
    """The number of parts that are read at a time; the number of ranks must divide it."""
    index: Annotated[Literal[True] | str | None, BeforeValidator(_none_if_false)] = None
    """The index, which gives the order by record: its URL, or ``True`` for the one beside the
    shards."""
    epochs: Annotated[PositiveInt | None, BeforeValidator(_none_if_infinite)] = 1
    """The epochs of a run; ``None``, or infinity, which TOML can say: it has no end."""
    steps_per_epoch: PositiveInt | None = None
    """Batches that each rank gets in an epoch; ``None``: all records."""
    remainder: Literal["keep", "drop", "pad"] | None = None
    """The treatment of the last, short batch: ``"keep"``, ``"drop"``, or ``"pad"`` with masked
    rows; ``None``: ``"keep"`` for one rank, ``"drop"`` for several."""
    weights: Annotated[
        list[tuple[NonNegativeInt, dict[str, Annotated[float, Field(ge=0)]]]] | None,
        BeforeValidator(_from_the_start),
    ] = None
    """The stages of a mix: the record (of all ranks) at which each begins, and its components'
    weights."""
    exhausted: Literal["repeat", "stop", "rest"] = "repeat"
    """The treatment, in a mix, of a component at its end: ``"repeat"`` begins it anew, ``"stop"``
    ends the lane, ``"rest"`` leaves the lane to the other components."""
    ordered: bool = True
    """False: batches take what comes first, so a slow lane stalls nothing and no order is kept."""
    filter: Annotated[Function | None, BeforeValidator(_function)] = None
    """A vectorised function from columns to a boolean mask of the records to keep."""
    map: Annotated[Function | None, BeforeValidator(_function)] = None
    """A vectorised function from columns to columns with as many rows."""
    transform: Annotated[Function | None, BeforeValidator(_function)] = None
    """A function from a batch to the columns that are delivered."""
    pack: Annotated[Pack | None, BeforeValidator(read_pack)] = None
    """The packing of sequences into rows of one length; a batch then consists of packs."""
    window: Annotated[Window | None, BeforeValidator(read_window)] = None
    """The windows of steps that are cut out of episodes; a batch then consists of windows."""
    length_buckets: Annotated[int, Field(ge=2, le=4096)] | None = None
    """The number of buckets for records of similar length; a batch is drawn from one of them."""
    balance: Annotated[Balance | None, BeforeValidator(read_balance)] = None
    """The feature whose length is a record's cost, or a ``Balance``: ranks exchange rows of each
    global batch, so that their costs are even."""
    check_crc: bool = True
    """False: records are not checked against their CRC32C."""
    on_corrupt: Literal["raise", "skip", "quarantine"] = "raise"
    """The treatment of damaged records: ``"raise"`` an error, ``"skip"`` them, or ``"quarantine"``
    (skip them, and keep their bytes)."""
    corrupt_budget: NonNegativeInt | Annotated[float, Field(ge=0, le=1)] = 0
    """The most records that may be skipped: a number, or a fraction, below 1, of those read."""
    quarantine: str | None = None
    """The URL under which the bytes of skipped records are kept."""
    exclude: Annotated[
        str | list[tuple[str, NonNegativeInt]] | dict[str, str | list[str | int]] | None,
        BeforeValidator(excluded_in_full),
    ] = None
    """The records that are never delivered: the URL of a list in JSON lines, each such as
    ``{"shard": "train-00003.tfrecord", "record": 17}``; a list of pairs of a shard's name and a
    record's number; or values by feature, as ``{"user_id": ["a", "b"]}``. All others keep their
    places."""
    compression: Annotated[Literal["auto"] | Compression, BeforeValidator(compression_name)] = (
        "auto"
    )
    """The shards' compression: ``"none"``, ``"gzip"``, ``"zlib"`` or ``"zstd"``; auto: by the first
    bytes of each. TensorFlow's names are taken too."""
    memory_budget: Annotated[Bytes | Literal["auto"], AfterValidator(large_enough)] = "auto"
    """The most bytes in flight, as a number or as ``"1GiB"``; auto: a quarter of the memory for all
    ranks of this machine, and 1 GiB at most."""
    max_record_bytes: Annotated[Bytes, Field(gt=0)] | Literal["auto"] = "auto"
    """Bytes of the longest record that is read; auto: the memory budget."""
    max_bytes: Annotated[Bytes, Field(gt=0)] | Literal["auto"] = "auto"
    """Bytes of the columns of one batch, and of what decoding its pictures takes besides; auto: a
    third of the memory budget, 48 MiB at least."""
    max_pixels: PositiveInt | Literal["auto"] = "auto"
    """Pixels of the largest picture that is decoded; auto: as many as max_bytes, and 89,478,485 at
    most, which are a quarter of a GiB in colour."""
    max_concurrency: PositiveInt | Literal["auto"] = "auto"
    """The most requests in flight; auto: as many as make it faster."""
    fetch_processes: Annotated[int, Field(ge=0, le=64)] | Literal["auto"] = 0
    """The processes that receive the bytes of remote shards; 0: the stream's own; auto: by the
    cores that this rank may use."""
    prefetch: Annotated[PositiveInt | Literal["auto"], BeforeValidator(_no_autotune)] = "auto"
    """The most batches that wait for the consumer; auto: as many as the budget's reserve
    holds, and 256 at most."""
    stall_timeout: PositiveFloat = 300.0
    """Seconds without a byte from the store before the stall is raised as an error."""
    cache: Annotated[CacheSettings | None, BeforeValidator(cache_in_full)] = None
    """The cache of ranges of remote stores, or of batches: a size such as ``"10GiB"``, a folder,
    ``"memory"``, or a mapping of ``"of"`` (``"ranges"``, ``"pictures"``, ``"mapped"`` or
    ``"batches"``), ``"folder"``, ``"size"`` and ``"key"``."""
    storage_options: Annotated[dict[str, Any], AfterValidator(Hidden)] | None = None
    """fsspec's options, for the filesystem of the source's scheme."""

    kinds = _KINDS
    checks = CHECKS

    @property
    def components(self) -> dict[str, str | list[str]]:
        """The sources of a mix, sorted by name; without a mix, one source with an empty name."""
        source = self.source
        return dict(sorted(source.items())) if isinstance(source, dict) else {"": source}

    @property
    def renames(self) -> dict[str, dict[str, str]]:
        """The new names of features, for each of ``components``."""
        names: Any = self.rename or {}
        if not isinstance(self.source, dict):
            return {"": names}
        return {component: names.get(component, {}) for component in self.components}

    @property
    def has_windows(self) -> bool:
        """True where lanes hold windows of ``shuffle_window`` and change the order inside them."""
        return self.shuffle or self.length_buckets is not None

    @property
    def is_mixed_by_index(self) -> bool:
        """True for a mix whose records in each step an index alone tells."""
        by_content = (self.filter, self.pack, self.length_buckets)
        is_plain = all(setting is None for setting in by_content)
        return self.weights is not None and self.index is not None and is_plain

    @property
    def urls(self) -> list[str]:
        """All URLs, globs and ranges of the source."""
        parts = self.components.values()
        return [url for part in parts for url in ([part] if isinstance(part, str) else part)]


_STREAM_KINDS: Mapping[str, Kind] = {
    **_KINDS,
    "rank": either(AUTO, integer(-(1 << 63))),
    "world_size": _COUNT_OR_AUTO,
    "engine": one_of(None, "process", "thread"),
    "restart": flag,
    "audit": either(NONE, read_audit),
}


class StreamSettings(DatasetSettings):
    """The settings of ``streamrec.open``."""

    rank: int | Literal["auto"] = "auto"
    """The part of the stream to read, from 0; auto: as a framework or the launcher says; or what
    ``rank_of`` returns, which sets the world size too."""
    world_size: PositiveInt | Literal["auto"] = "auto"
    """The number of parts."""
    engine: Literal["process", "thread"] | None = None
    """The reader behind a plain ``for`` loop, ``"process"`` or ``"thread"``; ``None``: a process
    where there is a GIL and the source can be read from one, else a thread."""
    restart: bool = False
    """True: each loop begins at the beginning of the run, also after a ``break``."""
    audit: Annotated[AuditSettings | None, BeforeValidator(log_in_full)] = None
    """The directory of a log of what is delivered in each step, as a URL or a path, or a mapping of
    ``"url"``, ``"every"`` (such as ``"5min"``) and ``"storage_options"``."""

    kinds = _STREAM_KINDS

    def dataset(self) -> DatasetSettings:
        """Return the settings that do not depend on the reading rank or engine."""
        # Without a second validation: all values have passed that of the stream's settings.
        return DatasetSettings.model_construct(
            **{name: getattr(self, name) for name in DatasetSettings.defaults}
        )


def ends(settings: DatasetSettings) -> dict[str, Any]:
    """Return the settings that decide where runs end."""
    # Ranks that differ in these would wait for each other for ever.
    return {name: getattr(settings, name) for name in ("epochs", "steps_per_epoch", "remainder")}


def ends_text(settings: DatasetSettings) -> str:
    """Return those of these settings that are not the defaults, as JSON; empty: there are none."""
    defaults = DatasetSettings.defaults
    changed = {name: value for name, value in ends(settings).items() if value != defaults[name]}
    return json.dumps(changed) if changed else ""
