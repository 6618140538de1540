"""The public stream of batches, and ``streamrec.take``: a few of them, and no more."""

from __future__ import annotations

import logging
import weakref
from functools import partial
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, cast

from typing_extensions import TypeVar

from streamrec.config import StreamSettings
from streamrec.config.arguments import count_of
from streamrec.config.habits import METHODS
from streamrec.errors import ConfigError, StreamrecError
from streamrec.flow import forks
from streamrec.flow.channel import EndOfStream
from streamrec.flow.loop_delay import LoopShare
from streamrec.masking import masked
from streamrec.plan.state.position import Position
from streamrec.streams import loops, ranks, workers
from streamrec.streams.first_batch import warn_of_records_left_out, warn_of_small_budget
from streamrec.streams.loops import ComingSession, Lookahead
from streamrec.streams.sources import length_of
from streamrec.streams.start import functions_of, name_of, start, start_async
from streamrec.streams.state import Row, Stateful, Turn, busy
from streamrec.values.columns import html_table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from streamrec.feeder.functions.sent_functions import SentFunctions
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.plan.state.fingerprint import Fingerprint
    from streamrec.plan.state.resume_point import ResumePoint
    from streamrec.streams.loops import AsyncSession, PlainSession
    from streamrec.streams.ranks import Assignment, Rank
    from streamrec.streams.start import Description
    from streamrec.streams.state import Mark


Item = TypeVar("Item", default=Any)


log = logging.getLogger("streamrec")


def _item_of(thing: Batch | Row | bytes) -> Any:
    """Return what the consumer of a stream gets: a batch, or a single record."""
    return thing.record() if isinstance(thing, Row) else thing


class Stream(Stateful, Generic[Item]):
    """Batches (or single records), for ``for`` and ``async for`` alike.

    ``for`` runs the stream's epochs and ends; iterating again goes on with the next epoch. After a
    ``break`` the next ``for`` goes on where the last one stopped. Use it in a ``with`` or ``async
    with`` block to stop reading at its end; a stream that is dropped stops too.
    """

    def __init__(self, description: Description, assignment: Assignment | None = None) -> None:
        super().__init__(assignment or ranks.assign(description.rank, description.world_size))
        self._description = description
        self._finalizer: weakref.finalize[..., Stream[Item]] | None = None
        # Kept beyond a session, so that the index is read once.
        self._length: int | None = None
        self._blocked = 0.0
        self._is_empty = False
        """True once it was said that there was no record."""
        self._turn = Turn()
        self._share = LoopShare()
        self._lookahead = Lookahead()
        self._functions: SentFunctions | None = None
        """The functions with all that they read when the session began."""
        forks.watch(self, Stream._leave_to_parent)

    if not TYPE_CHECKING:  # a type checker would take any name for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            hint = f"; {METHODS[name]}" if name in METHODS else ""
            raise AttributeError(f"a Stream has no attribute {name!r}{hint}")

    def __repr__(self) -> str:
        return f"<Stream of {name_of(self._description)}, {self._word}, step {self._cursor.step}>"

    @property
    def _word(self) -> str:
        return "closed" if self._session is None else "ended" if self._ended else "open"

    def _repr_html_(self) -> str:
        """Return a table of what the stream reads and how far it is, which notebooks show."""
        facts = {
            "state": self._word,
            "rank": "{} of {}".format(*self._assignment.rank),
            "epoch": self.epoch,
            "step": self._cursor.step,
            "batches taken": self._cursor.batches,
            "records taken": self._cursor.records,
        }
        return html_table(f"Stream of {name_of(self._description)}", facts)

    # -- iterating ---------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with self._turn:
            self._sync()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def __iter__(self) -> Self:
        self._begin_loop(is_async=False)
        return self

    def __next__(self, item_of: Callable[[Any], Any] = _item_of) -> Item:
        # An argument, not a second function around this one: an interrupt between the two would
        # lose what was taken.
        mark = self._cursor.mark()
        try:
            if self._cursor.rows:
                item: Item = item_of(self._row())
            else:
                with self._turn:
                    item = item_of(self._next())
        except (StopIteration, StreamrecError):
            raise
        except BaseException:
            self._go_back(mark)
            raise
        return item

    def _go_back(self, mark: Mark) -> None:
        # An interrupt may come between the taking of the lock and the block that gives it back.
        self._turn = Turn()
        self._cursor.go_back(mark)
        self._leave()

    def _next(self) -> Batch | Row | bytes:
        if self._ended:
            raise StopIteration
        began = perf_counter()
        try:
            batch = self._lookahead.receive(self._sync())
        except EndOfStream:
            self._end_run()
            raise StopIteration from None
        finally:
            self._blocked += perf_counter() - began
        return self._take(batch)

    def prefetch(self) -> None:
        """Begin to read for a plain loop, and return at once: while a model is built, for example.

        What fails is raised where the loop begins. A stream that is open reads ahead anyway, up to
        the end of its run, so there this does nothing. An ``async for`` begins anew: ``async with``
        begins to read there.
        """
        with self._turn:
            has_failed = isinstance(self._session, ComingSession) and self._session.has_failed
            if self._is_left or has_failed:
                self._close()
            if self._session is None:
                self._functions = functions_of(self._description)
                beginning = partial(start, self._description, *self._start(), self._functions)
                self._hold(ComingSession(beginning))

    def peek(self, count: int = 1) -> list[Batch]:
        """Return the next batches, as far as this run has them, and leave them to be taken.

        No state moves. An error in reading on is raised when it is the turn of the batch that is
        missing. Of a stream of single records, the batches are those in which they travel.

        Args:
            count: Number of batches to wait for, from 0.
        """
        mark = self._cursor.mark()
        try:
            with self._turn:
                self._read_ahead(count)
        except StreamrecError:
            raise
        except BaseException:
            self._go_back(mark)
            raise
        return self._lookahead.batches(count)

    def _read_ahead(self, count: int) -> None:
        if not self._ended:
            began = perf_counter()
            self._lookahead.read(self._sync(), count)
            self._blocked += perf_counter() - began

    async def __aenter__(self) -> Self:
        with self._turn:
            await self._async()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        self._begin_loop(is_async=True)
        return self

    async def __anext__(self) -> Item:
        if perf_counter() >= self._share.until:
            await self._share.give_way()
        if self._cursor.rows:
            return cast("Item", _item_of(self._row()))
        with self._turn:
            return cast("Item", _item_of(await self._anext()))

    async def _anext(self) -> Batch | Row | bytes:
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
        """Stop reading; the next iteration goes on where this one stopped.

        Raises:
            ConfigError: The stream is open in an event loop that runs: ``aclose`` waits for it.
        """
        session = self._session
        # Whoever waits here keeps the loop from turning, and the session from closing.
        if session is not None and session.is_async and not loops.is_left(session):
            raise ConfigError("the stream is open in an event loop; close it with `await aclose()`")
        self._close()

    async def aclose(self) -> None:
        """Stop reading, in asyncio code."""
        session = self._detach()
        if session is not None:
            await loops.close_async(session)

    # -- facts -------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of batches (or single records) that a run gives this rank.

        Before the stream is open, its index is read for that.

        Raises:
            TypeError: It is not known: the stream has no end or no index, or is a feeder's and not
                open.
            ConfigError: A DataLoader of PyTorch asks.
        """
        workers.check_sampler()
        if self._session is not None and not self._can_tell_early(self._session):
            self._length = self._session.settings.get("length")
        elif self._length is None:
            self._length = length_of(self._description, self._rank().world_size)
        length = self._length
        if length is None:
            raise TypeError(
                "the length is not known; set epochs, and steps_per_epoch or (without filter and "
                "pack) an index; a feeder's stream knows its length once it is open"
            )
        return length

    @property
    def surplus(self) -> int | None:
        """The masked rows of all ranks in a run: the cost of equal batches.

        Below 0: so many records are left out. ``None`` where the length does not follow from an
        index, and while the stream is not open.
        """
        if self._session is None or self._can_tell_early(self._session):
            return None
        surplus: int | None = self._session.settings.get("surplus")
        return surplus

    def _can_tell_early(self, session: PlainSession | AsyncSession) -> bool:
        """Return whether the length follows from the settings, while a session is to come."""
        settings = self._description
        is_early = isinstance(session, ComingSession) and session.is_pending
        return is_early and isinstance(settings, StreamSettings) and settings.index is None

    def __getitem__(self, number: object) -> NoReturn:
        """Refuse: a stream has no items by number.

        Raises:
            TypeError: Always. A ``DataLoader`` asks for items of what it does not know.
        """
        raise TypeError(
            f"a stream is iterated, and has no item {number!r}; in place of a DataLoader of "
            f"PyTorch, take {workers.AS_LOADER}; sr.take and stream.seek go to other places"
        )

    def __bool__(self) -> bool:
        """Return True, whatever its length, since a stream is not a container."""
        return True

    @property
    def fingerprint(self) -> Fingerprint:
        """Everything that determines the order; equal on every rank of the same stream."""
        return self._open_session().fingerprint

    @property
    def shards(self) -> list[str]:
        """The shards' URLs in their order, without credentials: ``batch.origin`` numbers them.

        Raises:
            ConfigError: Another process reads, and there are too many names to send them along.
        """
        settings = self._open_session().settings
        if settings["shards"] is None:
            raise ConfigError(
                f"the names of {settings['shard_count']} shards are too long for a feeder to send; "
                'list them where they are stored, or read with engine="thread"'
            )
        return [masked(url) for url in settings["shards"]]

    def statistics(self) -> dict[str, Any]:
        """Return counts of batches, records, bytes and requests, by names such as ``batches``.

        The documentation's page about metrics explains each.
        """
        return {
            **({} if self._session is None else self._session.statistics()),
            "batches": self._cursor.batches,
            "records": self._cursor.records,
            "step": self._cursor.step,
            "seconds_blocked": self._blocked,
        }

    def __getstate__(self) -> dict[str, Any]:
        workers.check_loader(*self._rank())
        state = self.state_dict()
        return {"description": self._description, "assignment": self._assignment, "state": state}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        self.__init__(pickled["description"], pickled["assignment"])  # type: ignore[misc]
        self.load_state_dict(pickled["state"])

    # -- sessions ----------------------------------------------------------------------------------

    def _leave_to_parent(self) -> None:
        """Leave the session to the parent, in a forked child, and open another when needed."""
        forks.keep_for_ever(self._detach())
        # Another thread may have held it at the fork, and has no copy here to give it back.
        self._turn = Turn()

    def _check_division(self) -> None:
        workers.check_loader(*self._rank())
        assigned = self._assignment
        workers.check_workers(assigned.made_in if assigned.is_given else None)

    def _start(self) -> tuple[Rank, ResumePoint]:
        self._check_division()
        self._assignment = ranks.log_assignment(self._assignment)
        return self._assignment.rank, self._cursor.resume_point(self._assignment.rank)

    def _sync(self) -> PlainSession:
        if self._is_left:
            self._close()
        session = self._session
        if session is None:
            self._functions = functions_of(self._description)
            session = self._hold(start(self._description, *self._start(), self._functions))
        elif isinstance(session, ComingSession):
            session = self._hold(self._come(session))
        return loops.plain(session)

    def _come(self, coming: ComingSession) -> PlainSession:
        """Wait for a session that was prefetched; after a failure the next call starts another."""
        try:
            return coming.come()
        except Exception:
            self._close()
            raise

    def _hold(self, session: PlainSession) -> PlainSession:
        """Own a session, which does not hold the stream: a stream that is dropped stops."""
        if self._finalizer is not None:
            self._finalizer.detach()
        self._session, self._finalizer = session, weakref.finalize(self, session.close)
        return session

    async def _async(self) -> AsyncSession:
        if self._is_left or isinstance(self._session, ComingSession):
            await self.aclose()
        if self._session is None:
            self._functions = functions_of(self._description)
            session = await start_async(self._description, *self._start())
            self._session = session
            self._finalizer = weakref.finalize(self, loops.close_in_loop, session)
            self._finalizer.atexit = False  # the loop is gone by then
        return loops.of_this_loop(self._session)

    def _open_session(self) -> PlainSession | AsyncSession:
        if self._session is None:
            raise ConfigError("the stream is not open; enter it with `with` or `async with` first")
        return self._session

    def _begin_loop(self, *, is_async: bool) -> None:
        self._check_division()
        # After the check, which must refuse before anything moves.
        if self._description.restart:
            self.restart()
        session = self._session
        if session is not None and functions_of(self._description) != self._functions:
            self._elsewhere = True  # what was read ahead is not what they would give now
        ended, self._ended = self._ended, False
        if session is None or self._elsewhere:
            return
        if session.is_async is not is_async or loops.is_left(session):
            self._leave()  # a loop of the other kind goes on with a session of its own
        elif ended:
            session.subscribe()

    def _end_run(self) -> None:
        state = self._open_session().position
        if state is not None:
            self._move(self._cursor.end, Position.from_dict(state))
        self._ended = True
        # A resumed stream may well end at once: it has taken its records before.
        if not (self._is_empty or self._cursor.batches or self._cursor.step):
            self._is_empty = True
            log.warning("%r has ended without a record; check the shards, and the filter", self)

    @property
    def _is_left(self) -> bool:
        """True if the session does not read where the stream is, or its event loop is gone."""
        return self._session is not None and (self._elsewhere or loops.is_left(self._session))

    def _close(self) -> None:
        session = self._detach()
        if session is not None:
            loops.close(session)

    def _detach(self) -> PlainSession | AsyncSession | None:
        """Remember where to go on, and give the session away."""
        self._cursor.settle()
        # They are read again from where the cursor stands.
        self._lookahead.clear()
        self._ended = self._elsewhere = False
        if self._finalizer is not None:
            self._finalizer.detach()
        # Given away before it is closed: closing may wait, and be interrupted.
        session, self._session = self._session, None
        return session

    # -- batches and single records ----------------------------------------------------------------

    def _take(self, batch: Batch) -> Batch | Row | bytes:
        settings = self._open_session().settings
        if settings["batch_size"] is not None:
            # At the first batch of all: before it nobody knows how large one is.
            if not self._cursor.batches and isinstance(self._description, StreamSettings):
                world_size = self._rank().world_size
                warn_of_small_budget(self._description, settings["lanes"], world_size, batch)
                warn_of_records_left_out(self._description, settings, world_size)
            self._move(self._cursor.take, batch)
            return batch
        self._move(self._cursor.receive, batch)
        return self._row()

    def _row(self) -> Row | bytes:
        try:
            return self._cursor.row()
        except IndexError:  # another thread took the last one: no lock is taken for a single record
            raise busy() from None


def take(stream: Stream[Item], count: int) -> Take[Item]:
    """Return the next ``count`` batches (or single records), for ``for`` and ``async for``.

    Nothing after them is taken: the stream's state is that of the last of them, and the next
    loop goes on there. There are fewer where the run ends before.

    Args:
        stream: The stream to take from, as far as the loop gets.
        count: Number of batches (or single records), from 0.

    Raises:
        ConfigError: The count is not a number from 0 up.
    """
    return Take(stream, count_of(count, "count"))


class Take(Generic[Item]):
    """The next few batches of a stream; each loop over them takes as many again."""

    def __init__(self, stream: Stream[Item], count: int) -> None:
        self._stream = stream
        self._count = count

    def __repr__(self) -> str:
        return f"<the next {self._count} of {self._stream!r}>"

    def __iter__(self) -> Iterator[Item]:
        # Merely asking a stream for its iterator may start the next run.
        return islice(self._stream, self._count) if self._count else iter(())

    async def __aiter__(self) -> AsyncIterator[Item]:
        left = self._count
        if not left:
            return
        async for item in self._stream:
            yield item
            left -= 1
            if not left:
                return
