"""The public stream: ``streamrec.open`` and ``streamrec.connect``."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from streamrec import ranks
from streamrec.config import StreamSettings, validate
from streamrec.errors import ConfigError, MalformedPosition
from streamrec.feeder.address import Address
from streamrec.feeder.client import AsyncFeed, BlockingFeed
from streamrec.flow.channel import EndOfStream
from streamrec.formats.descriptions import describe
from streamrec.formats.sequences import parser_of
from streamrec.plan.position import Fingerprint, Position
from streamrec.session import EngineSession, LoopSession, ThreadSession, close_in

if TYPE_CHECKING:
    from types import TracebackType

    from streamrec.ranks import Rank
    from streamrec.session import AsyncSession, Session
    from streamrec.types import Batch

__all__ = ["Stream", "connect", "open"]

BEGINNING = {"version": 1}
"""The state of a stream of which nothing has been taken."""


class Reader(Protocol):
    """The immutable description of a stream: knows how to start a session."""

    rank: int | Literal["auto"]
    world_size: int | Literal["auto"]

    async def start_async(self, rank: Rank, position: Position | None) -> AsyncSession:
        """Start a session in the running loop."""
        ...

    def start(self, rank: Rank, position: Position | None) -> Session:
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
        return source if isinstance(source, str) else f"{len(source)} sources"

    async def start_async(self, rank: Rank, position: Position | None) -> AsyncSession:
        """Read in the running loop."""
        return await LoopSession.open(self.description.dataset(), rank, position)

    def start(self, rank: Rank, position: Position | None) -> Session:
        """Read in a process or a thread."""
        if self._engine() == "thread":
            return ThreadSession(self.description.dataset(), rank, position)
        return EngineSession(self.description.dataset(), rank, position)

    def _engine(self) -> str:
        source, engine = self.description.source, self.description.engine
        sources = [source] if isinstance(source, str) else source
        private = [url for url in sources if url.startswith("memory:")]
        if private and engine == "process":
            raise ConfigError(
                f"{private[0]} is memory of this process, which another cannot read; "
                'set engine="thread"'
            )
        return engine or ("thread" if private else "process")


@dataclass(frozen=True)
class FeederReader:
    """Subscribes to a feeder."""

    address: str
    rank: int | Literal["auto"]
    world_size: int | Literal["auto"]
    batch_size: int | None
    token: str | None
    fingerprint: Fingerprint | None

    def __str__(self) -> str:
        return self.address

    async def start_async(self, rank: Rank, position: Position | None) -> AsyncSession:
        """Connect in the running loop."""
        return await AsyncFeed.open(self.address, position=position, **self._arguments(rank))

    def start(self, rank: Rank, position: Position | None) -> Session:
        """Connect from plain code."""
        return BlockingFeed.open(self.address, position=position, **self._arguments(rank))

    def _arguments(self, rank: Rank) -> dict[str, Any]:
        return {
            "rank": rank.rank,
            "world_size": rank.world_size,
            "batch_size": self.batch_size,
            "token": self.token,
            "fingerprint": self.fingerprint,
        }


def open(  # noqa: A001 - the public name: streamrec.open
    source: str | Sequence[str],
    features: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | str | None = None,
    **settings: Any,
) -> Stream:
    """Open shards as a stream of batches: ``streamrec.open``.

    Nothing is read before the stream is entered or iterated.

    Args:
        source: A URL, glob, ``{00000..00127}`` range, ``name@128``, or a list of them.
        features: Specs by feature name; a pair (context, sequence) of such mappings for
            SequenceExamples; ``"infer"``; or ``None`` for raw records.
        **settings: Those of :class:`streamrec.config.StreamSettings`; docs/settings.md explains
            each.

    Raises:
        ConfigError: A setting is wrong; all of them are checked at once.
    """
    source = source if isinstance(source, str) else [str(url) for url in source]
    plain = features if isinstance(features, str) else describe(features)
    if isinstance(plain, dict):
        parser_of(plain)
    values = {"source": source, "features": plain, **settings}
    return Stream(DatasetReader(validate(StreamSettings, values)))


def connect(
    address: str,
    *,
    rank: int | Literal["auto"] = "auto",
    world_size: int | Literal["auto"] = "auto",
    batch_size: int | None = None,
    token: str | None = None,
    fingerprint: Fingerprint | None = None,
) -> Stream:
    """Subscribe to a feeder: the same kind of stream, read by a daemon.

    Args:
        address: ``tcp://host:port/dataset`` or ``unix:///path#dataset``.
        rank: Which part of the stream; see docs/settings.md for ``"auto"``.
        world_size: Of how many.
        batch_size: Records per rank and batch; ``None``: what the feeder's configuration says.
        token: What the feeder wants to see.
        fingerprint: Refuse a feeder that serves another dataset or order than this.

    Raises:
        ConfigError: The address or an argument is wrong.
    """
    Address.parse(address)
    return Stream(FeederReader(address, rank, world_size, batch_size, token, fingerprint))


class Stream:
    """Batches, for ``for`` and ``async for`` alike.

    ``for`` runs the stream's epochs and ends; iterating again goes on with the next epoch. After a
    ``break`` the next ``for`` goes on where the last one stopped. Use it in a ``with`` or ``async
    with`` block to stop reading at its end; a stream that is dropped stops too.
    """

    def __init__(self, reader: DatasetReader | FeederReader) -> None:
        self._reader = reader
        self._session: Session | AsyncSession | None = None
        self._finalizer: weakref.finalize[..., Stream] | None = None
        self._resume: tuple[Position, ...] = ()
        self._position: Position | None = None
        self._rows: deque[Any] = deque()
        self._ended = False
        self._batches, self._records, self._blocked = 0, 0, 0.0

    def __repr__(self) -> str:
        state = "closed" if self._session is None else "ended" if self._ended else "open"
        return f"<Stream of {self._reader}, {state}, step {self._step()}>"

    # -- iterating ---------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._sync()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        if self._ended:
            self._next_run()
        return self

    def __next__(self) -> Any:
        if self._rows:
            return self._row()
        if self._ended:
            raise StopIteration
        began = perf_counter()
        try:
            batch = self._sync().receive()
        except EndOfStream:
            self._end_run()
            raise StopIteration from None
        finally:
            self._blocked += perf_counter() - began
        return self._take(batch)

    async def __aenter__(self) -> Self:
        await self._async()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        if self._ended:
            self._next_run()
        return self

    async def __anext__(self) -> Any:
        if self._rows:
            return self._row()
        if self._ended:
            raise StopAsyncIteration
        began = perf_counter()
        try:
            batch = await (await self._async()).receive()
        except EndOfStream:
            self._end_run()
            raise StopAsyncIteration from None
        finally:
            self._blocked += perf_counter() - began
        return self._take(batch)

    def close(self) -> None:
        """Stop reading; the next iteration goes on where this one stopped."""
        if self._session is not None:
            session = _plain(self._session)
            self._detach()
            session.close()

    async def aclose(self) -> None:
        """Stop reading, in asyncio code."""
        session = self._detach()
        if isinstance(session, (LoopSession, AsyncFeed)):
            await session.aclose()
        elif session is not None:
            _plain(session).close()

    # -- state -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch (or single record) taken: plain JSON-able data."""
        if self._position is not None:
            return replace(self._position, **self._within_batch()).to_dict()
        if len(self._resume) == 1:
            return self._resume[0].to_dict()
        if self._resume:
            return Position.merge(self._resume, **self._rank()._asdict()).to_dict()
        return dict(BEGINNING)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on from a state, or from those of all ranks for another world size.

        Raises:
            StateError: It is no state, or not one of this version of streamrec. Whether it belongs
                to this dataset and order is checked before the first batch.
        """
        states = [state] if isinstance(state, Mapping) else list(state)
        if not states:
            raise MalformedPosition("an empty list of states; give those of all ranks")
        at_start = all(dict(one) == BEGINNING for one in states)
        positions = () if at_start else tuple(Position.from_dict(dict(one)) for one in states)
        if self._session is not None:
            raise ConfigError("the stream is open; load the state before iterating, or after close")
        self._resume, self._position = positions, None
        self._rows.clear()
        self._ended = False

    @property
    def epoch(self) -> int:
        """The epoch of what comes next, from 0: the lowest of the lanes."""
        latest = self._position or (self._resume[0] if self._resume else None)
        return latest.epoch if latest else 0

    @property
    def fingerprint(self) -> Fingerprint:
        """What determines the order; equal on every rank that reads the same stream."""
        return self._opened().fingerprint

    @property
    def shards(self) -> list[str]:
        """The shards' URLs, sorted: ``batch.origin`` numbers them.

        Raises:
            ConfigError: Another process reads, and there are too many names to send them along.
        """
        settings = self._opened().settings
        if settings["shards"] is None:
            raise ConfigError(
                f"the names of {settings['shard_count']} shards are more than a feeder tells; list "
                'them where they are stored, or read with engine="thread"'
            )
        return list(settings["shards"])

    def statistics(self) -> dict[str, Any]:
        """What this stream has delivered, and what the fetch engine did; docs/operations.md."""
        return {
            **({} if self._session is None else self._session.statistics()),
            "batches": self._batches,
            "records": self._records,
            "step": self._step(),
            "seconds_blocked": self._blocked,
        }

    def __getstate__(self) -> dict[str, Any]:
        return {"reader": self._reader, "state": self.state_dict()}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        self.__init__(pickled["reader"])  # type: ignore[misc]
        self.load_state_dict(pickled["state"])

    # -- sessions ----------------------------------------------------------------------------------

    def _rank(self) -> Rank:
        return ranks.resolve(self._reader.rank, self._reader.world_size)

    def _start(self) -> tuple[Rank, Position | None]:
        rank = self._rank()
        if not self._resume:
            return rank, None
        one = self._resume[0]
        if len(self._resume) == 1 and (one.rank, one.world_size) == rank:
            return rank, one
        return rank, Position.merge(self._resume, rank=rank.rank, world_size=rank.world_size)

    def _sync(self) -> Session:
        if self._session is None:
            session = self._reader.start(*self._start())
            self._session = session
            self._finalizer = weakref.finalize(self, session.close)
        return _plain(self._session)

    async def _async(self) -> AsyncSession:
        if self._session is None:
            session = await self._reader.start_async(*self._start())
            self._session = session
            loop = asyncio.get_running_loop()
            self._finalizer = weakref.finalize(self, close_in, loop, session.aclose)
            self._finalizer.atexit = False  # the loop is gone by then
        if not isinstance(self._session, (LoopSession, AsyncFeed)):
            raise ConfigError("the stream is open in a plain `for`: close it first")
        return self._session

    def _opened(self) -> Session | AsyncSession:
        if self._session is None:
            raise ConfigError("the stream is not open; enter it with `with` or `async with` first")
        return self._session

    def _next_run(self) -> None:
        self._ended = False
        if self._session is not None:
            self._session.subscribe()

    def _end_run(self) -> None:
        self._ended = True
        state = self._opened().position
        if state is not None:
            self._position = Position.from_dict(state)

    def _detach(self) -> Session | AsyncSession | None:
        """Remember where to go on, and give the session away."""
        if self._position is not None:
            self._resume = (replace(self._position, **self._within_batch()),)
        self._rows.clear()
        self._position = None
        self._ended = False
        if self._finalizer is not None:
            self._finalizer.detach()
        session, self._session = self._session, None
        return session

    # -- batches and single records ----------------------------------------------------------------

    def _take(self, batch: Batch) -> Any:
        self._batches += 1
        self._position = batch.next_position
        if self._opened().settings["batch_size"] is not None:
            self._records += len(batch)
            return batch
        self._rows.extend(_rows_of(batch))
        return self._row()

    def _row(self) -> Any:
        self._records += 1
        return self._rows.popleft()

    def _step(self) -> int:
        return int(self.state_dict().get("step", 0))

    def _within_batch(self) -> dict[str, Any]:
        """In a stream of single records: how far the position lies behind the rows that wait."""
        assert self._position is not None
        waiting = len(self._rows)
        return {"skip": self._position.skip - waiting, "step": self._position.step - waiting}


def _plain(session: Session | AsyncSession) -> Session:
    if isinstance(session, (EngineSession, ThreadSession, BlockingFeed)):
        return session
    raise ConfigError("the stream is open in an event loop: use `async for` and `async with`")


def _rows_of(batch: Batch) -> list[Any]:
    if list(batch) == ["records"]:
        return batch.records.to_list()
    columns: dict[str, Any] = dict(batch)
    return [{name: column[row] for name, column in columns.items()} for row in range(len(batch))]
