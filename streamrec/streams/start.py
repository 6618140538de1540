"""Immutable descriptions of streams: what is read, or which feeder reads it, and how to begin."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, InstanceOf, PositiveFloat, PositiveInt

from streamrec.config import validate
from streamrec.errors import ConfigError, FeedError
from streamrec.feeder.address import Address
from streamrec.feeder.client import AsyncFeed, BlockingFeed
from streamrec.feeder.engine import is_started_ahead
from streamrec.feeder.session import state_of
from streamrec.masking import masked
from streamrec.plan.position import Fingerprint  # noqa: TC001 - pydantic wants it
from streamrec.streams.session import EngineSession, LoopSession, ThreadSession
from streamrec.streams.warm_start import RelaySession, can_relay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrec.config import StreamSettings
    from streamrec.plan.place import Place
    from streamrec.streams.ranks import Rank
    from streamrec.streams.session import AsyncSession, Session

__all__ = ["DatasetReader", "FeederReader", "Reader"]


class Reader(Protocol):
    """The immutable description of a stream: knows how to start a session."""

    @property
    def rank(self) -> int | Literal["auto"]:
        """As the user set it."""
        ...

    @property
    def world_size(self) -> int | Literal["auto"]:
        """As the user set it."""
        ...

    async def start_async(self, rank: Rank, position: Place) -> AsyncSession:
        """Start a session in the running loop."""
        ...

    def start(self, rank: Rank, position: Place) -> Session:
        """Start a session for plain code."""
        ...


@dataclass(frozen=True)
class DatasetReader:
    """Reads shards."""

    description: StreamSettings

    @property
    def rank(self) -> int | Literal["auto"]:
        """As the user set it."""
        return self.description.rank

    @property
    def world_size(self) -> int | Literal["auto"]:
        """As the user set it."""
        return self.description.world_size

    def __str__(self) -> str:
        source = self.description.source
        if isinstance(source, dict):
            return f"a mix of {', '.join(self.description.components)}"
        return masked(source) if isinstance(source, str) else f"{len(source)} sources"

    async def start_async(self, rank: Rank, position: Place) -> AsyncSession:
        """Read in the running loop."""
        return await LoopSession.open(self.description.dataset(), rank, position)

    def start(self, rank: Rank, position: Place) -> Session:
        """Read in a process or a thread, or in a thread until the process is ready."""
        settings, engine = self.description.dataset(), self._engine()
        if engine == "thread":
            return ThreadSession(settings, rank, position)
        with _going_on_at(position):
            if engine == "process" or is_started_ahead() or not can_relay(settings):
                return EngineSession.open(settings, rank, position)
            return RelaySession(settings, rank, position)

    def _engine(self) -> Literal["process", "thread"] | None:
        engine = self.description.engine
        private = [url for url in self.description.urls if url.startswith("memory:")]
        if private and engine == "process":
            raise ConfigError(
                f"{private[0]} is memory of this process, which another cannot read; "
                'set engine="thread"'
            )
        return "thread" if private else engine


@contextmanager
def _going_on_at(place: Place) -> Iterator[None]:
    """Give errors of feeds the place where the stream goes on, before a session knows it."""
    try:
        yield
    except FeedError as error:
        error.position = state_of(place)
        raise


class _Subscribing(BaseModel):
    """Arguments of ``streamrec.connect``, beside the address."""

    model_config = ConfigDict(defer_build=True)

    rank: int | Literal["auto"]
    world_size: PositiveInt | Literal["auto"]
    batch_size: PositiveInt | None
    token: str | None
    fingerprint: InstanceOf[Fingerprint] | None
    stall_timeout: PositiveFloat


@dataclass(frozen=True)
class FeederReader:
    """Subscribes to a feeder."""

    address: str
    rank: int | Literal["auto"]
    world_size: int | Literal["auto"]
    batch_size: int | None
    token: str | None = field(repr=False)
    fingerprint: Fingerprint | None
    stall_timeout: float

    @classmethod
    def checked(cls, address: str, **arguments: Any) -> Self:
        """Make one of arguments that a user gave: those of :func:`streamrec.connect`.

        Raises:
            ConfigError: The address or an argument is wrong.
        """
        Address.parse(address)
        return cls(address, **dict(validate(_Subscribing, arguments)))

    def __str__(self) -> str:
        return self.address

    async def start_async(self, rank: Rank, position: Place) -> AsyncSession:
        """Connect in the running loop."""
        with _going_on_at(position):
            return await AsyncFeed.open(self.address, position=position, **self._arguments(rank))

    def start(self, rank: Rank, position: Place) -> Session:
        """Connect from plain code."""
        with _going_on_at(position):
            return BlockingFeed.open(self.address, position=position, **self._arguments(rank))

    def _arguments(self, rank: Rank) -> dict[str, Any]:
        return {
            "rank": rank.rank,
            "world_size": rank.world_size,
            "batch_size": self.batch_size,
            "token": self.token,
            "fingerprint": self.fingerprint,
            "stall_timeout": self.stall_timeout,
        }
