"""Validated configuration: the settings of a stream and of the daemon, under the same names.

Settings are plain values (JSON-able), so that they can be sent to the engine process, written in
TOML and compared. Anything wrong raises :class:`~streamrec.errors.ConfigError`. Its message has one
sentence for each wrong setting, which begins "the setting 'name' ": a validator's message goes on
from there, and says what is wrong and what to do.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from streamrec.errors import ConfigError
from streamrec.masking import Hidden, shown
from streamrec.mixing import Schedule, check_ends, check_schedule

__all__ = [
    "Compression",
    "DaemonSettings",
    "DatasetSettings",
    "Pack",
    "StreamSettings",
    "byte_size",
    "compression_name",
    "load_daemon",
    "validate",
]

MIB = 1 << 20
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

_Wait: TypeAlias = Annotated[float, Field(gt=0, le=1e7)]
"""Seconds, up to 115 days: an event loop cannot set a longer timer."""

_SECRETS = ("storage_options", "token")
"""The settings whose values errors do not show."""

_FUNCTION = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")
_Model = TypeVar("_Model", bound=BaseModel)


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return ((name, shown(value)) for name, value in super().__repr_args__())


@dataclass(frozen=True)
class Pack:
    """The settings for packing sequences into rows of one length: ``streamrec.Pack``.

    Args:
        length: The number of values in a pack; or a mapping with that of each feature to pack.
        split: Cut a sequence where its pack is full; else each sequence stays whole in one pack.
        bins: The number of packs that are filled side by side; more of them leave less padding.
        overlong: Cut a sequence that is longer than a pack (``"truncate"``), or leave it out.
        documents: The most sequences in one pack; 1 pads each sequence to the length.
        padding: The value behind the last sequence of a pack.

    Raises:
        ConfigError: An argument is wrong, or two contradict each other.
    """

    length: int | dict[str, int]
    split: bool = False
    bins: int = 16
    overlong: Literal["truncate", "drop"] = "truncate"
    documents: int | None = None
    padding: int = 0

    @property
    def held_bytes(self) -> int:
        """The bytes, about, that a lane holds for its packs."""
        lengths = self.length.values() if isinstance(self.length, dict) else [self.length]
        # Twice: the packs being filled, and as many that are ready. A place takes a value of 8
        # bytes, its segment id and its position of 4 each.
        return 2 * (1 if self.split else self.bins) * sum(lengths) * (8 + 4 + 4)

    def __post_init__(self) -> None:
        """Refuse wrong and contradictory arguments."""
        lengths = self.length.values() if isinstance(self.length, dict) else [self.length]
        numbers = [*lengths, self.bins, 1 if self.documents is None else self.documents]
        if not lengths or not all(isinstance(n, int) and n > 0 for n in numbers):
            raise ConfigError(
                "a Pack takes integers from 1 up as length, bins and documents, "
                f"but this one is {self}; correct them"
            )
        if self.overlong not in ("truncate", "drop"):
            raise ConfigError(
                f'overlong of a Pack is {self.overlong!r}; choose "truncate" or "drop"'
            )
        if self.split and (self.documents is not None or len(set(lengths)) > 1):
            raise ConfigError(
                "a Pack with split=True takes one length for all features, and no documents; "
                "correct these, or set split to False"
            )


class DatasetSettings(_Settings):
    """The settings of one dataset: the source, the order and the batches; a daemon has them too."""

    source: str | list[str] | dict[str, str | list[str]]
    """A URL, glob, ``{00000..00127}`` range, ``name@128``, or a list of them; for a mix, a mapping
    with one of these for each component by its name."""
    features: dict[str, Any] | Literal["infer"] | None = None
    """Specs in their plain form (``formats.descriptions``), or ``None`` for raw records."""
    batch_size: PositiveInt | None = None
    """Records per rank and batch; ``None``: single records."""
    shuffle: bool = False
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    shuffle_window: ByteSize = Field(default=ByteSize(256 * MIB), ge=0)
    """Bytes of all lanes' windows together."""
    lanes: Annotated[int, Field(gt=0, le=1 << 16)] | Literal["auto"] = "auto"
    index: Literal[True] | str | None = None
    """The index, which gives the order by record: its URL, or ``True`` for the one beside the
    shards."""
    epochs: PositiveInt | None = 1
    steps_per_epoch: PositiveInt | None = None
    remainder: Literal["keep", "drop", "pad"] | None = None
    """The treatment of the last, short batch; ``None``: ``"keep"`` for one rank, ``"drop"`` for
    several."""
    weights: list[tuple[NonNegativeInt, dict[str, Annotated[float, Field(ge=0)]]]] | None = None
    """The stages of a mix: the record (of all ranks) at which each begins, and its components'
    weights."""
    exhausted: Literal["repeat", "stop", "rest"] = "repeat"
    """The treatment, in a mix, of a component at its end: it begins anew, ends the lane, or leaves
    the lane to the other components."""
    ordered: bool = True
    """False: batches take what comes first, so a slow lane stalls nothing and no order is kept."""
    filter: Function | None = None
    """A vectorised function from columns to a boolean mask of the records to keep."""
    map: Function | None = None
    """A vectorised function from columns to columns with as many rows."""
    transform: Function | None = None
    """A function from a batch to the columns that are delivered."""
    pack: Pack | None = None
    """The packing of sequences into rows of one length; a batch then consists of packs."""
    length_buckets: Annotated[int, Field(ge=2, le=4096)] | None = None
    """The number of buckets for records of similar length; a batch is drawn from one of them."""
    check_crc: bool = True
    on_corrupt: Literal["raise", "skip", "quarantine"] = "raise"
    """The treatment of damaged records."""
    corrupt_budget: NonNegativeInt | Annotated[float, Field(ge=0, le=1)] = 0
    """The most records that may be skipped: a number, or a fraction of the records read."""
    quarantine: str | None = None
    """The URL under which the bytes of skipped records are kept."""
    compression: Literal["auto"] | Compression = "auto"
    """The shards' compression; auto: by the first bytes of each. TensorFlow's names are taken too.
    """
    memory_budget: ByteSize | Literal["auto"] = "auto"
    """The most bytes in flight."""
    max_record_bytes: Annotated[ByteSize, Field(gt=0)] | Literal["auto"] = "auto"
    """Bytes of the longest record that is read; auto: the memory budget."""
    max_concurrency: PositiveInt | Literal["auto"] = "auto"
    """The most requests in flight."""
    prefetch: PositiveInt | Literal["auto"] = "auto"
    """The most batches that wait for the consumer; auto: as many as the budget's reserve holds."""
    stall_timeout: PositiveFloat = 300.0
    """Seconds without a byte from the store before the stall is raised as an error."""
    storage_options: Annotated[dict[str, Any], AfterValidator(Hidden)] | None = None
    """fsspec's options, for the filesystem of the source's scheme."""

    @property
    def components(self) -> dict[str, str | list[str]]:
        """The sources of a mix, sorted by name; without a mix, one source with an empty name."""
        source = self.source
        return dict(sorted(source.items())) if isinstance(source, dict) else {"": source}

    @property
    def has_windows(self) -> bool:
        """True where lanes hold windows of ``shuffle_window`` and change the order inside them."""
        return self.shuffle or self.length_buckets is not None

    @property
    def urls(self) -> list[str]:
        """All URLs, globs and ranges of the source."""
        parts = self.components.values()
        return [url for part in parts for url in ([part] if isinstance(part, str) else part)]

    @field_validator("source")
    @classmethod
    def _not_empty(cls, source: str | list[str] | dict[str, Any]) -> Any:
        parts = list(source.values()) if isinstance(source, dict) else [source]
        if not parts or not all(part and all(part) for part in parts):
            raise ValueError("names no shard; give a URL, a glob or a list of them")
        if isinstance(source, dict) and not all(source):
            raise ValueError("has a component without a name; give each component one")
        return source

    @field_validator("weights", mode="before")
    @classmethod
    def _from_the_start(cls, weights: object) -> object:
        return [(0, weights)] if isinstance(weights, dict) else weights

    @field_validator("weights")
    @classmethod
    def _weights_fit(cls, weights: Schedule | None, known: ValidationInfo) -> Schedule | None:
        source = known.data.get("source", "")
        if not isinstance(source, dict):
            if weights is not None:
                raise ValueError(_NO_MIX)
            return None
        if not weights:
            raise ValueError(f"is missing; give a weight to each component: {', '.join(source)}")
        if known.data.get("index") is not None:
            raise ValueError(
                "makes a mix, which cannot be read in the order by record; leave out the index"
            )
        check_schedule(weights, set(source))
        return weights

    @field_validator("ordered")
    @classmethod
    def _order_fits(cls, ordered: bool, known: ValidationInfo) -> bool:
        if not ordered and isinstance(known.data.get("source"), dict):
            raise ValueError(
                "is False, but a mix takes its components in a fixed order; leave ordered out"
            )
        return ordered

    @field_validator("exhausted")
    @classmethod
    def _ends_fit(cls, choice: str, known: ValidationInfo) -> str:
        if isinstance(known.data.get("source"), dict):
            check_ends(choice, known.data)
        elif choice != "repeat":
            raise ValueError(_NO_MIX)
        return choice

    @field_validator("filter", "map", "transform", mode="before")
    @classmethod
    def _function(cls, function: object) -> object:
        if function is None or callable(function):
            return function
        if not isinstance(function, str) or not _FUNCTION.fullmatch(function):
            raise ValueError(f'is {function!r} and should be a function, or "module:function"')
        return function

    @field_validator("length_buckets")
    @classmethod
    def _buckets_fit(cls, buckets: int | None, known: ValidationInfo) -> int | None:
        if buckets is not None and known.data.get("pack") is not None:
            raise ValueError(
                "has no effect on packs, which are all of one length; leave out length_buckets or "
                "pack"
            )
        if buckets is not None and not known.data.get("ordered", True):
            raise ValueError(
                "needs all lanes in step, but ordered is False; leave out length_buckets or ordered"
            )
        return buckets

    @field_validator("index", mode="before")
    @classmethod
    def _none_if_false(cls, index: object) -> object:
        return None if index is False or index == "" else index

    @field_validator("on_corrupt")
    @classmethod
    def _checked(cls, choice: str, known: ValidationInfo) -> str:
        if choice != "raise" and known.data.get("check_crc") is False:
            raise ValueError(
                f"is {choice!r}, but with check_crc=False no damage would be noticed; set "
                'check_crc to True, or on_corrupt to "raise"'
            )
        return choice

    @field_validator("corrupt_budget")
    @classmethod
    def _budget_fits(cls, budget: float, known: ValidationInfo) -> float:
        choice = known.data.get("on_corrupt", "raise")
        if choice == "raise" and budget:
            raise ValueError(
                'has no effect while on_corrupt is "raise"; set on_corrupt to "skip" or '
                '"quarantine", or leave corrupt_budget out'
            )
        if choice != "raise" and not budget:
            raise ValueError(
                f"is 0, so that on_corrupt={choice!r} may skip nothing; give a number of records, "
                "or a fraction such as 0.001"
            )
        return budget

    @field_validator("quarantine")
    @classmethod
    def _quarantine_fits(cls, url: str | None, known: ValidationInfo) -> str | None:
        wanted = known.data.get("on_corrupt", "raise") == "quarantine"
        if wanted and not url:
            raise ValueError(
                "is missing, but on_corrupt is 'quarantine'; give a URL to write damaged records to"
            )
        if url and not wanted:
            raise ValueError(
                "has no effect unless on_corrupt is 'quarantine'; set that, or leave quarantine out"
            )
        return url

    @field_validator("compression", mode="before")
    @classmethod
    def _plain_name(cls, name: object) -> object:
        return compression_name(name) if name is None or isinstance(name, str) else name

    @field_validator("memory_budget")
    @classmethod
    def _large_enough(cls, budget: ByteSize | str) -> ByteSize | str:
        if isinstance(budget, int) and budget < 8 * MIB:
            raise ValueError(
                "is less than the 8 MiB that one range and one batch need; give 8 MiB or more"
            )
        return budget


class StreamSettings(DatasetSettings):
    """The settings of ``streamrec.open``."""

    rank: int | Literal["auto"] = "auto"
    world_size: PositiveInt | Literal["auto"] = "auto"
    engine: Literal["process", "thread"] | None = None
    """The reader behind a plain ``for`` loop; ``None``: a process where the source can be read from
    one, else a thread."""

    def dataset(self) -> DatasetSettings:
        """Return the settings that do not depend on the reading rank or engine."""
        own = set(StreamSettings.model_fields) - set(DatasetSettings.model_fields)
        return DatasetSettings.model_construct(
            **{name: value for name, value in self if name not in own}
        )


class DaemonSettings(_Settings):
    """The configuration of ``streamrec serve``: ``[server]`` and ``[datasets.NAME]`` tables."""

    class Server(_Settings):
        """The settings of the daemon itself: its addresses, limits and timeouts."""

        listen: list[str] = Field(default=["tcp://127.0.0.1:7070"], min_length=1)
        """``tcp://host:port`` or ``unix:///path``; port 0 picks a free one."""
        status: str | None = "127.0.0.1:7071"
        """``host:port`` of ``/livez``, ``/readyz``, ``/metrics``; ``""`` or ``None`` for none."""
        token: SecretStr | None = None
        """The token that clients must present. Over TCP beyond loopback it is refused, since it
        would need TLS."""
        insecure: bool = False
        """True: listen beyond this machine, though anybody who can connect can read."""
        grace: PositiveFloat = 30.0
        """Seconds after SIGTERM in which batches already under way are finished."""
        max_connections: PositiveInt = 1024
        """The most clients; others are sent elsewhere."""
        max_connections_per_address: PositiveInt = 256
        """The most clients at one address of another machine."""
        max_handshakes: PositiveInt = 256
        """The most connections that have not finished their handshake; the oldest are closed."""
        handshake_timeout: _Wait = 10.0
        """Seconds to wait for HELLO, and after WELCOME for SUBSCRIBE and CREDIT."""
        idle_timeout: _Wait = 7200.0
        """Seconds that a client may be silent before its connection is closed."""

        @field_validator("status")
        @classmethod
        def _none_if_empty(cls, status: str | None) -> str | None:
            return status or None

    server: Server = Server()
    datasets: dict[str, DatasetSettings] = Field(min_length=1)


def validate(model: type[_Model], values: dict[str, Any], *, where: str = "") -> _Model:
    """Build a settings object from plain values.

    Args:
        model: The settings class.
        values: The values by the settings' names.
        where: The source of the values for errors, such as the configuration file's path.

    Raises:
        ConfigError: Settings are wrong; the message has one sentence for each of them.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        by_setting: dict[tuple[str, ...], list[Any]] = {}
        for fault in error.errors():
            by_setting.setdefault(_setting(model, fault["loc"]), []).append(fault)
        faults = "; ".join(_sentence(model, path, few) for path, few in by_setting.items())
        raise ConfigError(f"{where}: {faults}" if where else faults) from None


def byte_size(name: str, text: str) -> int:
    """Read a number of bytes, at least one, as settings write it (``"4MiB"``).

    Raises:
        ConfigError: It is none; the error says ``name``.
    """
    try:
        size = TypeAdapter(ByteSize).validate_python(text)
    except ValidationError:
        size = ByteSize(0)
    if size < 1:
        raise ConfigError(f"{name} is {text!r} and should be a number of bytes, as in 4MiB")
    return int(size)


def load_daemon(path: str | Path) -> DaemonSettings:
    """Read the daemon's TOML file.

    Raises:
        ConfigError: The file cannot be read, is not TOML, or a setting is wrong.
    """
    try:
        values = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}); name a readable TOML file"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML ({error}); correct the file") from None
    return validate(DaemonSettings, values, where=str(path))


def ends(settings: DatasetSettings) -> dict[str, Any]:
    """Return the settings that decide where runs end."""
    # Ranks that differ in these would wait for each other for ever.
    return settings.model_dump(include={"epochs", "steps_per_epoch", "remainder"})


def compression_name(name: str | None) -> str:
    """Return our name of a compression; TensorFlow's are ``"GZIP"``, ``"ZLIB"`` and ``""``."""
    return (name or "none").lower()


_NO_MIX = "has no effect, since the source has no components to mix; leave it out"


def _setting(model: type[BaseModel], location: tuple[Any, ...]) -> tuple[str, ...]:
    """Return the path of a setting's name, without the union members that pydantic appends."""
    in_table = issubclass(model, DaemonSettings)
    depth = {"server": 2, "datasets": 3}.get(str(location[0]), 1) if in_table else 1
    return tuple(str(part) for part in location[:depth])


def _sentence(model: type[BaseModel], path: tuple[str, ...], faults: list[Any]) -> str:
    name, first = ".".join(path), faults[0]
    if first["type"] == "extra_forbidden":
        return f"there is no setting {name!r}{_nearest(model, path)}"
    if first["type"] == "missing":
        return f"the setting {name!r} is missing; add it"
    if first["type"] == "value_error":
        error = first["ctx"]["error"]
        # A validator's message goes on from the name; that of Pack is a sentence of its own.
        return f"the setting {name!r}{': ' if isinstance(error, ConfigError) else ' '}{error}"
    wanted = " or ".join(fault["msg"].removeprefix("Input should be ") for fault in faults)
    given = first["input"]
    said = type(given).__name__ if path[-1] in _SECRETS else repr(given)
    return f"the setting {name!r} is {said} and should be {wanted}"


def _nearest(model: type[BaseModel], path: tuple[str, ...]) -> str:
    names = _names_beside(model, path)
    close = difflib.get_close_matches(path[-1], names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(sorted(names))}"


def _names_beside(model: type[BaseModel], path: tuple[str, ...]) -> list[str]:
    if issubclass(model, DaemonSettings) and len(path) > 1:
        model = DaemonSettings.Server if path[0] == "server" else DatasetSettings
    return list(model.model_fields)
