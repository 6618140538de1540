"""Validated configuration: the settings of a stream and of the daemon, under the same names.

Settings are plain values (JSON-able), so that they can be sent to the engine process, written in
TOML and compared. Anything wrong raises :class:`~streamrec.errors.ConfigError` with one sentence
that names the setting, what is wrong with it, and the nearest right name.
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
"""How many shards the lanes of a shuffle by shard have open together, if there are as many, and if
lanes are not more: a batch has records of each of them. Three for each of 48 lanes."""
FEWEST_OPEN_SHARDS = 16
"""The same of a small window: what is read ahead of many would take more memory than it does."""
WINDOW_A_SHARD = MIB // 2
"""Bytes of the window for each shard that is open, between the two."""

Compression: TypeAlias = Literal["none", "gzip", "zlib", "zstd"]

Function: TypeAlias = Callable[..., Any] | str
"""Of the user: itself, or its name as ``module:function``."""

_Wait: TypeAlias = Annotated[float, Field(gt=0, le=1e7)]
"""Seconds for which an event loop can set a timer: up to 115 days."""

_SECRETS = ("storage_options", "token")
"""Settings whose values no error shows."""

_FUNCTION = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")
_Model = TypeVar("_Model", bound=BaseModel)


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return ((name, shown(value)) for name, value in super().__repr_args__())


@dataclass(frozen=True)
class Pack:
    """How sequences are packed into rows of one length: ``streamrec.Pack``.

    Args:
        length: Values of a pack; or that of each feature to pack, by name.
        split: Cut sequences where a pack is full; else each is whole, in one pack.
        bins: How many packs are filled side by side; more of them leave less padding.
        overlong: What becomes of a sequence that no pack can hold: cut, or left out.
        documents: How many sequences share a pack at most; 1 pads each to the length.
        padding: The value behind the last sequence.

    Raises:
        ConfigError: These contradict each other.
    """

    length: int | dict[str, int]
    split: bool = False
    bins: int = 16
    overlong: Literal["truncate", "drop"] = "truncate"
    documents: int | None = None
    padding: int = 0

    @property
    def held_bytes(self) -> int:
        """What a lane holds for its packs, about: those it fills, and as many that are ready."""
        lengths = self.length.values() if isinstance(self.length, dict) else [self.length]
        return 2 * (1 if self.split else self.bins) * sum(lengths) * (8 + 4 + 4)

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        lengths = self.length.values() if isinstance(self.length, dict) else [self.length]
        numbers = [*lengths, self.bins, 1 if self.documents is None else self.documents]
        if not lengths or not all(isinstance(n, int) and n > 0 for n in numbers):
            raise ConfigError(f"needs lengths and numbers from 1 up: {self}")
        if self.overlong not in ("truncate", "drop"):
            raise ConfigError(f'has overlong {self.overlong!r}, not "truncate" or "drop"')
        if self.split and (self.documents is not None or len(set(lengths)) > 1):
            raise ConfigError("splits sequences, so it takes one length and no documents")


class DatasetSettings(_Settings):
    """What is read, in which order and how: the part that a daemon's dataset has too."""

    source: str | list[str] | dict[str, str | list[str]]
    """A URL, glob, ``{00000..00127}`` range, ``name@128``, or a list of them; of a mix, those of
    each component by its name."""
    features: dict[str, Any] | Literal["infer"] | None = None
    """Specs in their plain form (``formats.descriptions``), or ``None`` for raw records."""
    batch_size: PositiveInt | None = None
    """Records per rank and batch; ``None``: single records."""
    shuffle: bool = False
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    shuffle_window: ByteSize = Field(default=ByteSize(256 * MIB), ge=0)
    """Bytes over all lanes."""
    lanes: Annotated[int, Field(gt=0, le=1 << 16)] | Literal["auto"] = "auto"
    index: Literal[True] | str | None = None
    """The index that the order by record needs: its URL, or ``True``: beside the shards."""
    epochs: PositiveInt | None = 1
    steps_per_epoch: PositiveInt | None = None
    remainder: Literal["keep", "drop", "pad"] | None = None
    """The last, short batch; ``None``: ``"keep"`` for one rank, ``"drop"`` for several."""
    weights: list[tuple[NonNegativeInt, dict[str, Annotated[float, Field(ge=0)]]]] | None = None
    """Of a mix: from which record on, of all ranks, each component has which part of the records.
    """
    exhausted: Literal["repeat", "stop", "rest"] = "repeat"
    """Of a mix: a component at its end begins anew, ends the lane, or leaves it to the rest."""
    ordered: bool = True
    """False: first come, first served. A slow lane stalls nothing, and no order is kept."""
    filter: Function | None = None
    """Columns to a boolean mask of the records to keep; record by record, vectorised."""
    map: Function | None = None
    """Columns to columns of as many rows; record by record, vectorised."""
    transform: Function | None = None
    """A batch to the columns that are delivered."""
    pack: Pack | None = None
    """Sequences into packs of one length; a batch is then one of packs."""
    length_buckets: Annotated[int, Field(ge=2, le=4096)] | None = None
    """How many buckets of records of like length; a batch is then of one of them."""
    check_crc: bool = True
    on_corrupt: Literal["raise", "skip", "quarantine"] = "raise"
    """What is done where a record is damaged."""
    corrupt_budget: NonNegativeInt | Annotated[float, Field(ge=0, le=1)] = 0
    """How many records may be skipped: a number, or a fraction of those that are read."""
    quarantine: str | None = None
    """A URL under which what is skipped is kept."""
    compression: Literal["auto"] | Compression = "auto"
    """Of the shards; auto: what each begins with. TensorFlow's names are taken too."""
    memory_budget: ByteSize | Literal["auto"] = "auto"
    """Bytes in flight."""
    max_record_bytes: Annotated[ByteSize, Field(gt=0)] | Literal["auto"] = "auto"
    """Bytes of the longest record that is read; auto: those of the memory budget."""
    max_concurrency: PositiveInt | Literal["auto"] = "auto"
    """Requests in flight."""
    prefetch: PositiveInt | Literal["auto"] = "auto"
    """Batches that may wait for the consumer; auto: as many as the budget's reserve holds."""
    stall_timeout: PositiveFloat = 300.0
    """Seconds without a byte from the store before the stall is raised as an error."""
    storage_options: Annotated[dict[str, Any], AfterValidator(Hidden)] | None = None
    """fsspec's options, for the filesystem of the source's scheme."""

    @property
    def components(self) -> dict[str, str | list[str]]:
        """The sources of a mix by name, sorted; one without a name where nothing is mixed."""
        source = self.source
        return dict(sorted(source.items())) if isinstance(source, dict) else {"": source}

    @property
    def has_windows(self) -> bool:
        """Whether lanes hold windows of ``shuffle_window``, and change the order inside them."""
        return self.shuffle or self.length_buckets is not None

    @property
    def urls(self) -> list[str]:
        """All that the source names."""
        parts = self.components.values()
        return [url for part in parts for url in ([part] if isinstance(part, str) else part)]

    @field_validator("source")
    @classmethod
    def _not_empty(cls, source: str | list[str] | dict[str, Any]) -> Any:
        parts = list(source.values()) if isinstance(source, dict) else [source]
        if not parts or not all(part and all(part) for part in parts):
            raise ValueError("names no shard")
        if isinstance(source, dict) and not all(source):
            raise ValueError("has a component without a name")
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
                raise ValueError("has no effect: the source has no components to mix")
            return None
        if not weights:
            raise ValueError(f"is missing; say how much of each is mixed: {', '.join(source)}")
        if known.data.get("index") is not None:
            raise ValueError("are of a mix, which takes shards as they come: leave out the index")
        check_schedule(weights, set(source))
        return weights

    @field_validator("ordered")
    @classmethod
    def _order_fits(cls, ordered: bool, known: ValidationInfo) -> bool:
        if not ordered and isinstance(known.data.get("source"), dict):
            raise ValueError("is False, which keeps no order, and a mix is one: leave it out")
        return ordered

    @field_validator("exhausted")
    @classmethod
    def _ends_fit(cls, choice: str, known: ValidationInfo) -> str:
        if isinstance(known.data.get("source"), dict):
            check_ends(choice, known.data)
        elif choice != "repeat":
            raise ValueError("has no effect: the source has no components to mix")
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
                "has no effect on packs, which are all of one length; leave one of the two out"
            )
        if buckets is not None and not known.data.get("ordered", True):
            raise ValueError(
                "needs all lanes in step, and ordered is False; leave one of the two out"
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
            raise ValueError(f"is {choice!r}, but check_crc is off: no damage would be noticed")
        return choice

    @field_validator("corrupt_budget")
    @classmethod
    def _budget_fits(cls, budget: float, known: ValidationInfo) -> float:
        choice = known.data.get("on_corrupt", "raise")
        if choice == "raise" and budget:
            raise ValueError('has no effect while on_corrupt is "raise"; choose "skip"')
        if choice != "raise" and not budget:
            raise ValueError(
                f"is 0, so that on_corrupt={choice!r} may skip nothing; set a number of records, "
                "or a fraction such as 0.001"
            )
        return budget

    @field_validator("quarantine")
    @classmethod
    def _quarantine_fits(cls, url: str | None, known: ValidationInfo) -> str | None:
        wanted = known.data.get("on_corrupt", "raise") == "quarantine"
        if wanted and not url:
            raise ValueError("is missing; on_corrupt='quarantine' needs a URL to write to")
        if url and not wanted:
            raise ValueError("has no effect unless on_corrupt is 'quarantine'")
        return url

    @field_validator("compression", mode="before")
    @classmethod
    def _plain_name(cls, name: object) -> object:
        return compression_name(name) if name is None or isinstance(name, str) else name

    @field_validator("memory_budget")
    @classmethod
    def _large_enough(cls, budget: ByteSize | str) -> ByteSize | str:
        if isinstance(budget, int) and budget < 8 * MIB:
            raise ValueError("is less than the 8 MiB that one range and one batch need")
        return budget


class StreamSettings(DatasetSettings):
    """The settings of ``streamrec.open``."""

    rank: int | Literal["auto"] = "auto"
    world_size: PositiveInt | Literal["auto"] = "auto"
    engine: Literal["process", "thread"] | None = None
    """Who reads for a plain ``for``; ``None``: a process where the source can be read from one."""

    def dataset(self) -> DatasetSettings:
        """The part that does not depend on who reads."""
        own = set(StreamSettings.model_fields) - set(DatasetSettings.model_fields)
        return DatasetSettings.model_construct(
            **{name: value for name, value in self if name not in own}
        )


class DaemonSettings(_Settings):
    """The configuration of ``streamrec serve``: ``[server]`` and ``[datasets.NAME]`` tables."""

    class Server(_Settings):
        """Where the daemon listens, and how it ends."""

        listen: list[str] = Field(default=["tcp://127.0.0.1:7070"], min_length=1)
        """``tcp://host:port`` or ``unix:///path``; port 0 picks a free one."""
        status: str | None = "127.0.0.1:7071"
        """``host:port`` of ``/livez``, ``/readyz``, ``/metrics``; ``""`` or ``None`` for none."""
        token: SecretStr | None = None
        """What clients must present; over TCP beyond loopback it needs TLS, and is refused."""
        insecure: bool = False
        """Listen beyond this machine, where whoever can connect can read."""
        grace: PositiveFloat = 30.0
        """Seconds that SIGTERM gives to batches already under way."""
        max_connections: PositiveInt = 1024
        """Clients; more are sent elsewhere."""
        max_connections_per_address: PositiveInt = 256
        """Clients at one address of another machine."""
        max_handshakes: PositiveInt = 256
        """Connections that are no clients yet; of more, the oldest are cut."""
        handshake_timeout: _Wait = 10.0
        """Seconds for HELLO, and after WELCOME for SUBSCRIBE and CREDIT."""
        idle_timeout: _Wait = 7200.0
        """Seconds that a client may give no sign of life."""

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
        values: By name.
        where: What to call the whole in an error, such as the configuration file's path.

    Raises:
        ConfigError: One sentence a wrong setting, all of them at once.
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
        ConfigError: It is none; the error calls it by its name.
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
        raise ConfigError(f"{path}: {error.strerror}; name a readable TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    return validate(DaemonSettings, values, where=str(path))


def ends(settings: DatasetSettings) -> dict[str, Any]:
    """What decides where runs end: ranks that differ in it wait for each other for ever."""
    return settings.model_dump(include={"epochs", "steps_per_epoch", "remainder"})


def compression_name(name: str | None) -> str:
    """The plain name of a compression; TensorFlow's are ``"GZIP"``, ``"ZLIB"`` and ``""``."""
    return (name or "none").lower()


def _setting(model: type[BaseModel], location: tuple[Any, ...]) -> tuple[str, ...]:
    """The setting's own name, without the members of unions that pydantic appends."""
    in_table = issubclass(model, DaemonSettings)
    depth = {"server": 2, "datasets": 3}.get(str(location[0]), 1) if in_table else 1
    return tuple(str(part) for part in location[:depth])


def _sentence(model: type[BaseModel], path: tuple[str, ...], faults: list[Any]) -> str:
    name, first = ".".join(path), faults[0]
    if first["type"] == "extra_forbidden":
        return f"there is no setting {name!r}{_nearest(model, path)}"
    if first["type"] == "missing":
        return f"the setting {name!r} is missing"
    if first["type"] == "value_error":
        return f"the setting {name!r} {first['msg'].removeprefix('Value error, ')}"
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
