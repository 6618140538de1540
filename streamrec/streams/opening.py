"""The functions that make a stream: ``open``, ``mix`` and ``connect`` of the package."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal, Never, overload

from streamrec.config import StreamSettings, validate
from streamrec.config.arguments import absolute_sources, kind_of
from streamrec.config.habits import HABITS
from streamrec.config.lazy_settings import with_settings
from streamrec.config.places import PLACES, absolute, absolute_options, absolute_values
from streamrec.errors import ConfigError
from streamrec.feeder.access.address import Address
from streamrec.formats.examples.descriptions import describe, dtype_names, narrow
from streamrec.formats.examples.features import parser_of
from streamrec.formats.examples.renaming import check_renames
from streamrec.streams.start import FeederSettings
from streamrec.streams.stream import Stream
from streamrec.suggestions import nearest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias, Unpack

    import numpy.typing as npt

    from streamrec.config.keywords import (
        Audit,
        ColumnKeywords,
        Engine,
        Features,
        MixColumnKeywords,
        MixKeywords,
        Source,
        StreamKeywords,
    )
    from streamrec.feeder.access.access import ClientTls
    from streamrec.formats.examples.image_spec import DenseColumn, GivesOther, Spec
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.plan.state.fingerprint import Fingerprint
    from streamrec.values.columns import BytesColumn

    Components: TypeAlias = Mapping[str, Source | tuple[Source, float]]
    Weights: TypeAlias = Sequence[tuple[int, Mapping[str, float]]]


@overload
def open(  # noqa: A001
    source: Source,
    features: Mapping[str, Spec[GivesOther]],
    *,
    batch_size: int,
    **settings: Unpack[ColumnKeywords],
) -> Stream[Batch[GivesOther]]: ...
@overload
def open(  # noqa: A001
    source: Source,
    features: Mapping[str, Spec[DenseColumn]],
    *,
    batch_size: int,
    **settings: Unpack[ColumnKeywords],
) -> Stream[Batch[npt.NDArray[Any]]]: ...
@overload
def open(  # noqa: A001
    source: Source, features: None = None, *, batch_size: int, **settings: Unpack[ColumnKeywords]
) -> Stream[Batch[BytesColumn]]: ...
@overload
def open(  # noqa: A001
    source: Source,
    features: Features | None = None,
    *,
    batch_size: int,
    **settings: Unpack[StreamKeywords],
) -> Stream[Batch]: ...
@overload
def open(  # noqa: A001
    source: Source,
    features: Features | None = None,
    *,
    batch_size: None = None,
    **settings: Unpack[StreamKeywords],
) -> Stream[Any]: ...
def open(  # noqa: A001 - the public name: streamrec.open
    source: Source = (),
    features: Features | None = None,
    *,
    batch_size: int | None = None,
    **settings: Unpack[StreamKeywords],
) -> Stream[Any]:
    """Open shards as a stream of batches: ``streamrec.open``.

    Nothing is read before the stream is entered or iterated.

    Args:
        source: A URL, path, glob, ``{00000..00127}`` range, ``name@128``, or a list of them.
        features: Specs by feature name; a pair (context, sequence) of such mappings for
            SequenceExamples; ``"infer"``; or ``None`` for raw records.
        batch_size: Records per rank and batch. ``None``: the stream gives single records, each as
            bytes, or as a dict of its features.
        **settings: All other settings; ``help(streamrec.open)`` lists them. If a ``filter``,
            ``map`` or ``transform`` has a second parameter named ``rng``, it gets a
            ``numpy.random.Generator`` that follows from the seed, the epoch and the place in the
            data.

    Raises:
        ConfigError: A setting is wrong; all of them are checked at once.
    """
    if isinstance(source, Mapping):
        raise ConfigError("these are several sources by name; mix them with streamrec.mix")
    # Without a default, Python's own error would name no way to go on.
    if isinstance(source, tuple) and not source:
        raise ConfigError(_without_source(settings))
    values = {"batch_size": batch_size, **settings}
    return Stream(checked(absolute_sources(source), features, values))


def _without_source(settings: Mapping[str, Any]) -> str:
    """Return the message for a call that names no source, perhaps by another library's name."""
    for name in settings:
        if HABITS.get(name) == HABITS["path"]:
            return f"there is no setting {name!r}: {HABITS[name]}"
    return "streamrec.open needs a source; give a URL, a path, a pattern or a list of them"


def _absolute(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are places, with absolute paths."""
    values = {
        name: absolute(fspath(value)) if name in PLACES else fspath(value)
        for name, value in settings.items()
        if isinstance(value, PathLike) or (name in PLACES and isinstance(value, str))
    }
    if isinstance(excluded := settings.get("exclude"), Mapping):
        values["exclude"] = absolute_values(excluded)
    # Anything else is left as it is, for the validation to refuse it by its name.
    if isinstance(options := settings.get("storage_options"), Mapping):
        values["storage_options"] = absolute_options(options)
    return values


NAMED = ("source", "features", "batch_size", "weights")
"""The arguments of ``open`` and ``mix`` that their docstrings explain."""
open.__doc__ = with_settings(open.__doc__, StreamSettings, without=(*NAMED, "exhausted"))


@overload
def mix(
    components: Components,
    features: Mapping[str, Spec[GivesOther]],
    *,
    batch_size: int,
    weights: Weights | None = None,
    **settings: Unpack[MixColumnKeywords],
) -> Stream[Batch[GivesOther]]: ...
@overload
def mix(
    components: Components,
    features: Mapping[str, Spec[DenseColumn]],
    *,
    batch_size: int,
    weights: Weights | None = None,
    **settings: Unpack[MixColumnKeywords],
) -> Stream[Batch[npt.NDArray[Any]]]: ...
@overload
def mix(
    components: Components,
    features: None = None,
    *,
    batch_size: int,
    weights: Weights | None = None,
    **settings: Unpack[MixColumnKeywords],
) -> Stream[Batch[BytesColumn]]: ...
@overload
def mix(
    components: Components,
    features: Features | None = None,
    *,
    batch_size: int,
    weights: Weights | None = None,
    **settings: Unpack[MixKeywords],
) -> Stream[Batch]: ...
@overload
def mix(
    components: Components,
    features: Features | None = None,
    *,
    batch_size: None = None,
    weights: Weights | None = None,
    **settings: Unpack[MixKeywords],
) -> Stream[Any]: ...
def mix(
    components: Components,
    features: Features | None = None,
    *,
    batch_size: int | None = None,
    weights: Weights | None = None,
    **settings: Unpack[MixKeywords],
) -> Stream[Any]:
    """Open several sources as one stream, mixed record by record: ``streamrec.mix``.

    Args:
        components: For each name, a pair of a source and its weight, as ``{"web": (url, 0.7)}``;
            with ``weights``, only the source. Sources are as for ``open``.
        features: The features of all components, as for ``open``.
        batch_size: As for ``open``.
        weights: Pairs of a record's number and the weights, by name, that hold from this record on.
            The records of all ranks are counted, in their order, before a filter; the first number
            is 0.
        **settings: All other settings; ``help(streamrec.mix)`` lists them. ``exhausted`` says what
            a component does at its end.

    Raises:
        ConfigError: A setting is wrong; all of them are checked at once.
    """
    if not isinstance(components, Mapping):
        raise ConfigError(
            f"a mix takes sources by name, not {kind_of(components)}; give a mapping, as in "
            "{'web': (url, 0.7), 'code': (url, 0.3)}"
        )
    values = {"batch_size": batch_size, "weights": weights, **settings}
    return Stream(checked_mix(components, features, values))


def checked_mix(components: Components, features: Any, settings: dict[str, Any]) -> StreamSettings:
    """Check all that ``mix`` was given, and return the settings of the stream.

    Raises:
        ConfigError: A setting is wrong.
    """
    weights = settings.get("weights")
    pairs: dict[str, Any] = {n: part for n, part in components.items() if _is_weighted(part)}
    if weights is None and len(pairs) == len(components):
        weights = [(0, {name: weight for name, (_, weight) in pairs.items()})]
    elif weights is None or pairs:
        raise ConfigError(
            "a mix takes a weight with each source, as in {'web': (url, 0.7)}, or weights=[(0, "
            "{'web': 0.7}), ...] and sources alone"
        )
    sources = {n: pairs[n][0] if n in pairs else part for n, part in components.items()}
    # Absolute at once: the working directory may be another one when the stream begins to read.
    texts: Any = {name: absolute_sources(source) for name, source in sources.items()}
    return checked(texts, features, {**settings, "weights": weights})


mix.__doc__ = with_settings(mix.__doc__, StreamSettings, without=NAMED)


def _is_weighted(part: Any) -> bool:
    """Return whether it is a pair of a source and a weight, not a source of two URLs."""
    return isinstance(part, tuple) and len(part) == 2 and isinstance(part[1], int | float)


def _with_rank(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with a rank and a world size by themselves where ``rank`` is both.

    Raises:
        ConfigError: ``world_size`` contradicts it.
    """
    rank = settings.get("rank")
    if not isinstance(rank, tuple) or len(rank) != 2:
        return settings
    if settings.get("world_size", "auto") not in ("auto", rank[1]):
        raise ConfigError(
            f"rank= says that there are {rank[1]} ranks, and world_size= that there are "
            f"{settings['world_size']}; leave out world_size"
        )
    return {**settings, "rank": rank[0], "world_size": rank[1]}


def checked(source: Any, features: Any, settings: dict[str, Any]) -> StreamSettings:
    """Check all that ``open`` was given, and return the settings of the stream.

    Raises:
        ConfigError: A setting is wrong.
    """
    plain = features if isinstance(features, str) else describe(features)
    settings = _with_rank(settings)
    if settings.get("dtypes") is not None:
        settings["dtypes"] = dtype_names(settings["dtypes"])
    features = []
    if isinstance(plain, dict):
        # Made and dropped: a wrong spec is told by the call that names it, not by the first batch.
        features = parser_of(narrow(plain, settings.get("dtypes") or [])).features
    # The absolute places come last, since they replace the settings' own.
    values = {"source": source, "features": plain, **settings, **_absolute(settings)}
    result = validate(StreamSettings, values)
    if features:
        check_renames(features, result.renames)
    return result


def connect(
    address: str,
    *,
    rank: int | tuple[int, int] | Literal["auto"] = "auto",
    world_size: int | Literal["auto"] = "auto",
    batch_size: int | None = None,
    token: str | None = None,
    tls: ClientTls = None,
    fingerprint: Fingerprint | None = None,
    stall_timeout: float = 300.0,
    connect_timeout: float = 10.0,
    retry_for: float = 600.0,
    engine: Engine | None = None,
    replicas: bool = False,
    restart: bool = False,
    audit: Audit | None = None,
    **others: Never,
) -> Stream[Any]:
    """Subscribe to a feeder: the same kind of stream, read by a daemon.

    If a feeder is lost, drained or replaced, the stream goes on at the next feeder, from the batch
    after the last one.

    Args:
        address: ``tcp://host:port/dataset``, ``tls://...`` or ``unix:///path#dataset``. Several
            hosts have commas between; a name with many addresses stands for all.
        rank: The part of the stream to read, from 0; ``"auto"``: as a framework or the launcher
            says; or what ``rank_of`` returns, the rank and the world size both.
        world_size: The number of parts.
        batch_size: Records per rank and batch; ``None``: what the feeder's configuration says.
        token: The feeder's secret, or ``file:/path`` of a file with it, which is read again for
            each connection. It is sent only over TLS or on this machine.
        tls: For ``tls://``: the path of a file of authorities to trust, or a mapping with the paths
            of this file (``ca``) and of the client's certificate (``cert``, ``key``). The files are
            read again for each connection;
            ``None`` or ``True``: trust the system's authorities. The host of the address must stand
            in the feeder's certificate.
        fingerprint: The fingerprint of an earlier stream: refuse a feeder with another dataset or
            order.
        stall_timeout: Seconds without anything of the stream until ``Stalled`` is raised.
        connect_timeout: Seconds for each attempt to connect.
        retry_for: Seconds to try other feeders after a failure; 0: a failure is an error at once.
        engine: ``"process"``: for a plain ``for``, a process of its own receives, even if this
            process keeps the interpreter busy; ``"thread"``: a thread receives. ``None``: the
            thread that takes the batches, but for TLS a process, or without a GIL a thread.
        replicas: True: other clients read the same rank, and the feeder reads once for all of them.
        restart: True: each loop begins at the beginning of the run, even after a ``break``.
        audit: As for ``open``, with storage options of its own.
        **others: Refused, since the feeder's configuration has all other settings.

    Raises:
        ConfigError: The address or an argument is wrong.
    """
    # Taken, and refused here: Python's own error would not say where such a setting belongs.
    if others:
        raise ConfigError("; ".join(map(_not_of_a_client, others)))
    from streamrec.feeder.access.access import tls_files  # streams of shards do without it

    values = {
        "address": address,
        "rank": rank,
        "world_size": world_size,
        "batch_size": batch_size,
        "token": _absolute_token(token),
        "tls": _absolute_files(tls_files(tls, Address.parse_all(address)[0])),
        "fingerprint": fingerprint,
        "stall_timeout": stall_timeout,
        "connect_timeout": connect_timeout,
        "retry_for": retry_for,
        "engine": engine,
        "replicas": replicas,
        "restart": restart,
        "audit": audit,
    }
    return Stream(validate(FeederSettings, _with_rank(values)))


def _not_of_a_client(name: str) -> str:
    """Return the message for an argument that ``connect`` does not have."""
    if name in StreamSettings.defaults:
        return (
            f"{name!r} is not a setting of streamrec.connect: the feeder's configuration decides "
            "it; set it there, in the table of the dataset"
        )
    hint = f": {HABITS[name]}" if name in HABITS else nearest(name, FeederSettings.defaults)
    return f"streamrec.connect has no setting {name!r}{hint}"


def _absolute_token(token: Any) -> Any:
    """Return a token; of ``file:path``, with the absolute path."""
    is_file = isinstance(token, str) and token.startswith("file:")
    return f"file:{absolute(token.removeprefix('file:'))}" if is_file else token


def _absolute_files(files: dict[str, str] | None) -> dict[str, str] | None:
    return None if files is None else {name: absolute(path) for name, path in files.items()}
