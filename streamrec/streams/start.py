"""The start of a session: who reads for a stream.

| the stream reads | ``async for`` | ``for`` |
|---|---|---|
| shards | this event loop | an engine process, a thread, or a warm start of both |
| from a feeder | a feed of this event loop | a blocking feed, an engine process or a thread |

A process stands in for a thread where threads share the interpreter's lock with the training.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from streamrec.config import StreamSettings
from streamrec.config.cache_and_audit import AuditSettings, log_in_full, read_audit
from streamrec.config.lazy_settings import LazySettings
from streamrec.config.plain_values import (
    AUTO,
    NONE,
    Kind,
    dict_of,
    either,
    flag,
    integer,
    number,
    one_of,
    positive,
    positive_number,
    text,
)
from streamrec.errors import ConfigError, FeedError
from streamrec.feeder.engine.engine import is_started_ahead
from streamrec.feeder.functions.map_identity import identify, with_identity
from streamrec.flow import callers
from streamrec.masking import mask_urls, masked
from streamrec.pipeline.batch.functions import SETTINGS, load
from streamrec.plan.state.fingerprint import Fingerprint
from streamrec.streams.session import (
    LoopSession,
    ThreadFeed,
    ThreadSession,
    open_engine,
    open_relay,
)
from streamrec.streams.warm_start import WarmStartSession, can_warm_start
from streamrec.surroundings import has_gil, has_interpreter, has_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pydantic import (
        BeforeValidator,
        Field,
        InstanceOf,
        NonNegativeFloat,
        PositiveFloat,
        PositiveInt,
    )

    from streamrec.config import DatasetSettings
    from streamrec.feeder.functions.sent_functions import SentFunctions
    from streamrec.plan.state.resume_point import ResumePoint
    from streamrec.streams.audit_log import AuditLog
    from streamrec.streams.loops import AsyncSession, PlainSession
    from streamrec.streams.ranks import Rank


def _plain_fingerprint(value: object) -> Fingerprint | None:
    if value is None or isinstance(value, Fingerprint):
        return value
    raise ValueError


_KINDS: Mapping[str, Kind] = {
    "address": text,
    "rank": either(AUTO, integer(-(1 << 63))),
    "world_size": either(AUTO, positive),
    "batch_size": either(NONE, positive),
    "token": either(NONE, text),
    "tls": either(NONE, dict_of(text)),
    "fingerprint": _plain_fingerprint,
    "stall_timeout": positive_number,
    "connect_timeout": lambda seconds: number(0, 1e7)(positive_number(seconds)),
    "retry_for": number(0),
    "engine": one_of(None, "process", "thread"),
    "replicas": flag,
    "restart": flag,
    "audit": either(NONE, read_audit),
}


class FeederSettings(LazySettings):
    """The arguments of ``streamrec.connect``."""

    address: str
    rank: int | Literal["auto"]
    world_size: PositiveInt | Literal["auto"]
    batch_size: PositiveInt | None
    token: str | None
    tls: dict[str, str] | None
    """The paths of PEM files, as ``client_context`` takes them; ``None``: no TLS."""
    fingerprint: InstanceOf[Fingerprint] | None
    stall_timeout: PositiveFloat
    connect_timeout: Annotated[float, Field(gt=0, le=1e7)]
    retry_for: NonNegativeFloat
    engine: Literal["process", "thread"] | None
    replicas: bool
    restart: bool
    audit: Annotated[AuditSettings | None, BeforeValidator(log_in_full)]

    unshown = ("token",)
    kinds = _KINDS


Description: TypeAlias = StreamSettings | FeederSettings
"""The immutable description of a stream."""


def functions_of(description: Description) -> SentFunctions | None:
    """Return the functions of a stream with all that they read now; ``None``: it has none here.

    Raises:
        ConfigError: There is no function of a name.
    """
    if isinstance(description, FeederSettings):
        return None
    values = {name: getattr(description, name) for name in SETTINGS}
    functions = {
        name: load(name, value) if isinstance(value, str) else value
        for name, value in values.items()
        if value is not None
    }
    if not functions:
        return None
    from streamrec.feeder.functions.sent_functions import (
        SentFunctions,  # cloudpickle: few streams need it
    )

    return SentFunctions.of(functions)


LOGGED = (
    "source", "split", "index", "batch_size", "shuffle", "seed", "shuffle_window", "lanes",
    "epochs", "steps_per_epoch", "remainder", "weights", "exhausted", "length_buckets",
    "balance", "on_corrupt", "corrupt_budget", "compression", "features", "rename", "dtypes",
)  # fmt: skip
"""The settings that an audit log tells, since its check needs them. Functions are not among them:
whoever can write into a log must not choose what its check calls."""

OF_COLUMNS = ("features", "rename", "dtypes")
"""Those of them that functions need."""
EXCLUDES = "excludes"
"""The name of what is true if the stream leaves out records; their list may name persons."""


def open_log(description: Description) -> AuditLog | None:
    """Return the audit log of a stream; ``None``: nobody wants one."""
    if description.audit is None:
        return None
    from streamrec.streams.audit_log import AuditLog  # few streams have one

    if isinstance(description, FeederSettings):
        return AuditLog(description.audit, None, {})
    return AuditLog(description.audit, description.storage_options, logged_settings(description))


def logged_settings(description: StreamSettings) -> dict[str, Any]:
    """Return the settings of a stream that its audit log tells."""
    values = {name: getattr(description, name) for name in LOGGED}
    values["balance"] = description.balance and asdict(description.balance)
    if description.filter is None and description.map is None:
        # Only functions look at columns: else no record is parsed again.
        values = {name: value for name, value in values.items() if name not in OF_COLUMNS}
    defaults = StreamSettings.defaults
    plain = {name: mask_urls(value) for name, value in values.items() if value != defaults[name]}
    return plain if description.exclude is None else {**plain, EXCLUDES: True}


def start(
    description: Description,
    rank: Rank,
    position: ResumePoint,
    functions: SentFunctions | None = None,
) -> PlainSession:
    """Start a session for plain code.

    Args:
        description: What to read.
        rank: The part of it to read.
        position: The place to begin at.
        functions: Those of :func:`functions_of`.
    """
    with _going_on_at(position):
        if isinstance(description, FeederSettings):
            return _feed_for(description)(**_route(description, rank, position))
        settings = with_identity(description.dataset())
        read = _reader_of(description, settings)
        # A thread calls the functions themselves, which then need not be sent anywhere.
        if functions is None or read is ThreadSession:
            return read(settings, rank, position)
        if functions.error is None:
            return open_engine(settings, rank, position, functions.data)
        # The user asked for a process: a thread in its place would be a silent loss of speed.
        if description.engine is not None:
            raise functions.error
        callers.warn_user(
            f"a thread reads, and shares the interpreter with the training: {functions.error}"
        )
        return ThreadSession(settings, rank, position)


async def start_async(description: Description, rank: Rank, position: ResumePoint) -> AsyncSession:
    """Start a session in the running event loop."""
    with _going_on_at(position):
        if isinstance(description, FeederSettings):
            from streamrec.feeder.client.healing import AsyncHealingFeed

            return await AsyncHealingFeed.open(**_route(description, rank, position))
        settings = await identify(description.dataset())
        return await LoopSession.open(settings, rank, position)


def name_of(description: Description) -> str:
    """Return what a stream reads, in few words and without credentials."""
    if isinstance(description, FeederSettings):
        return description.address
    source = description.source
    if isinstance(source, dict):
        return f"a mix of {', '.join(description.components)}"
    return masked(source) if isinstance(source, str) else f"{len(source)} sources"


def _reader_of(
    description: StreamSettings, settings: DatasetSettings
) -> Callable[[DatasetSettings, Rank, ResumePoint], PlainSession]:
    """Return the session that reads shards for plain code."""
    engine = description.engine
    private = [url for url in description.urls if url.startswith("memory:")]
    if private and engine == "process":
        raise ConfigError(
            f"{private[0]} is memory of this process, which another cannot read; "
            'set engine="thread"'
        )
    if private or engine == "thread":
        return ThreadSession
    # A process that was started ahead has imported its libraries: no thread would be faster.
    if engine == "process" or is_started_ahead() or not has_threads():
        return open_engine
    if not has_gil() or not _can_start_processes():
        return ThreadSession
    if not can_warm_start(settings):
        return open_engine
    return WarmStartSession


def _can_start_processes() -> bool:
    """Return whether an engine process can be started; warn where none can."""
    if has_interpreter():
        return True
    callers.warn_user(
        "a thread reads, and shares the interpreter with the training: an engine process needs a "
        f"Python interpreter, but sys.executable is {sys.executable!r}; set it to the path of one"
    )
    return False


def _feed_for(settings: FeederSettings) -> Callable[..., PlainSession]:
    """Return what receives from a feeder for plain code."""
    if settings.engine == "thread":
        return ThreadFeed
    if settings.engine == "process":
        return open_relay
    # Whoever decrypts lets go of the interpreter's lock for every 16 KiB, so a process does.
    if settings.tls is not None:
        return open_relay if has_gil() and _can_start_processes() else ThreadFeed
    from streamrec.feeder.client.healing import BlockingHealingFeed

    return BlockingHealingFeed


def _route(settings: FeederSettings, rank: Rank, position: ResumePoint) -> dict[str, Any]:
    route = dict(settings) | rank._asdict() | {"position": position}
    # They are for this side: feeders know none of them.
    del route["engine"], route["restart"], route["audit"]
    return route


@contextmanager
def _going_on_at(place: ResumePoint) -> Iterator[None]:
    """Give errors of feeds the place where the stream goes on, before a session knows it."""
    try:
        yield
    except FeedError as error:
        from streamrec.feeder.client.session import state_of

        error.position = state_of(place)
        raise
