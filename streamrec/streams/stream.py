"""The public stream of batches, and ``streamrec.take``: a few of them, and no more."""

from __future__ import annotations

import asyncio
from itertools import islice
from socket import gethostname
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, cast

from typing_extensions import TypeVar

from streamrec.config import StreamSettings
from streamrec.config.arguments import count_of, seconds_of
from streamrec.config.habits import METHODS
from streamrec.errors import ConfigError, StreamrecError
from streamrec.flow import forks
from streamrec.flow.bridge import Bridge
from streamrec.flow.channel import EndOfStream
from streamrec.flow.timings import LoopShare
from streamrec.masking import masked
from streamrec.streams import loops, ranks, workers
from streamrec.streams.first_batch import warn_of_records_left_out, warn_of_small_budget
from streamrec.streams.loops import Blocked, ComingSession
from streamrec.streams.session_owner import SessionOwner
from streamrec.streams.sources import can_jump, length_of, place_after
from streamrec.streams.start import name_of
from streamrec.streams.state import Row, Turn, busy
from streamrec.values.columns import html_table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from streamrec.pipeline.batch.batch import Batch
    from streamrec.plan.state.fingerprint import Fingerprint
    from streamrec.plan.state.position import Position
    from streamrec.streams.loops import AsyncSession, PlainSession
    from streamrec.streams.ranks import Assignment
    from streamrec.streams.reports import Reporter
    from streamrec.streams.start import Description
    from streamrec.streams.state import Mark


Item = TypeVar("Item", default=Any)


def _item_of(thing: Batch | Row | bytes) -> Any:
    """Return what the consumer of a stream gets: a batch, or a single record."""
    return thing.record() if isinstance(thing, Row) else thing


class Stream(SessionOwner, Generic[Item]):
    """Batches (or single records), for ``for`` and ``async for`` alike.

    ``for`` runs the stream's epochs and ends; iterating again goes on with the next epoch. After a
    ``break`` the next ``for`` goes on where the last one stopped. Use it in a ``with`` or ``async
    with`` block to stop reading at its end; a stream that is dropped stops too.
    """

    def __init__(self, description: Description, assignment: Assignment | None = None) -> None:
        assigned = assignment or ranks.assign(description.rank, description.world_size)
        super().__init__(description, assigned)
        # Kept beyond a session, so that the index is read once.
        self._length: int | None = None
        self._blocked = Blocked()
        self._reports: list[Reporter] = []
        self._turn = Turn()
        self._share = LoopShare()
        forks.watch(self, Stream._leave_to_parent)

    def __del__(self) -> None:
        # By the names that are there: it may never have been made.
        for report in self.__dict__.get("_reports", ()):
            report.leave(self)

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
        self._end_reports()
        self._close()
        self._close_log()

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
        self._check_log()
        try:
            with self._blocked:
                batch = self._lookahead.receive(self._sync())
        except EndOfStream:
            self._end_run()
            raise StopIteration from None
        return self._take(batch)

    def prefetch(self) -> None:
        """Begin to read for a plain loop, and return at once: while a model is built, for example.

        Errors are raised where the loop begins. An open stream reads ahead anyway, up to the end of
        its run, so this does nothing then. It does not read for an ``async for``: use ``async
        with`` to begin to read there.
        """
        with self._turn:
            self._begin_ahead()

    def peek(self, count: int = 1) -> list[Batch]:
        """Return the next batches of this run without taking them.

        The state stays the same. An error is raised only when the loop comes to the batch that
        could not be read. For a stream of single records, these are the batches in which the
        records travel.

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
            with self._blocked:
                self._lookahead.read(self._sync(), count)

    def skip(self, steps: int) -> None:
        """Leave out the next batches (or single records), as if they had been taken and dropped.

        In the order by record, they are not read. In any other order, and from a feeder, they are
        read and dropped. If the run has fewer, a loop that is running ends, and the next loop
        begins the next run. All ranks skip the same steps.

        Args:
            steps: Number of batches (or single records), from 0.

        Raises:
            ConfigError: ``steps`` is not a number from 0 up.
            StreamrecError: Reading failed, as in a loop that takes the batches.
        """
        count = count_of(steps, "steps")
        with self._cursor.passing_over():
            if self._can_jump:
                with self._turn, Bridge() as loop:
                    self._jump(loop.call(self._place_after(count)))
            else:
                for _ in take(self, count):
                    pass

    async def askip(self, steps: int) -> None:
        """Do what :meth:`skip` does, in asyncio code."""
        count = count_of(steps, "steps")
        with self._cursor.passing_over():
            if self._can_jump:
                with self._turn:
                    self._jump(await self._place_after(count))
            else:
                async for _ in take(self, count):
                    pass

    @property
    def _can_jump(self) -> bool:
        return can_jump(self._description)

    async def _place_after(self, steps: int) -> Position:
        assert isinstance(self._description, StreamSettings)
        rank = self._rank()
        return await place_after(self._description, rank, self._cursor.resume_point(rank), steps)

    def _jump(self, position: Position) -> None:
        is_over = position.run_epoch != self._cursor.run_epoch
        self._cursor.jump(position)
        self._leave()
        # A loop that is running ends with its run; the next loop begins the next run.
        self._ended = is_over

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
        self._check_log()
        try:
            with self._blocked:
                batch = await (await self._async()).receive()
        except EndOfStream:
            self._end_run()
            raise StopAsyncIteration from None
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
        self._end_reports()
        self._close()
        self._close_log()

    async def aclose(self) -> None:
        """Stop reading, in asyncio code."""
        if self._reports:
            await asyncio.to_thread(self._end_reports)
        await self._aclose()
        if self._cursor.log is not None:
            await asyncio.to_thread(self._close_log)

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
        """The number of masked rows of all ranks in a run: the cost of equal lengths.

        A negative number counts records that are left out. ``None`` if the length does not follow
        from an index, and while the stream is not open.
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
        session = self._session  # another thread may close it meanwhile
        return {
            **({} if session is None else session.statistics()),
            "batches": self._cursor.batches,
            "records": self._cursor.records,
            "step": self._cursor.step,
            "seconds_blocked": self._blocked.seconds,
        }

    def report_to(self, target: Any, every: float | str = "30s") -> None:
        """Report rates, waits and requests to a tracker of experiments, once a period.

        A thread reports, until the stream is closed or the program ends, and once more then. If all
        ranks of a job call this, one of them also logs which rank holds the others back. An error
        of the tracker is logged once. The how-to page "Find the slow rank" names the figures.

        Args:
            target: A ``SummaryWriter`` of TensorBoard, a run of Weights & Biases, ``mlflow`` or one
                of its runs, an object with ``log_metrics(values, step=)``, a ``CollectorRegistry``
                of Prometheus or the URL of a Pushgateway, a function ``f(step, values)``; ``None``:
                only the ranks are compared.
            every: The period: seconds, or a text such as ``"30s"`` or ``"5min"``.

        Raises:
            ConfigError: The target has an unknown type or no run yet, or the period is not a
                length of time.
        """
        # A program that reports to nobody does not wait for their import.
        from streamrec.streams.reports import Reporter, target_of

        seconds = seconds_of(every, "every")
        labels = {"instance": gethostname(), "rank": str(self._rank().rank)}
        topic = None if self._reports else name_of(self._description)
        self._reports.append(
            Reporter(self, target_of(target, labels), seconds, topic, Stream._mix_changes)
        )

    def _mix_changes(self) -> str:
        return self._cursor.mix_changes

    def _end_reports(self) -> None:
        reports, self._reports = self._reports, []
        for report in reports:
            report.close()

    def __getstate__(self) -> dict[str, Any]:
        workers.check_loader(*self._rank())
        state = self.state_dict()
        return {"description": self._description, "assignment": self._assignment, "state": state}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        self.__init__(pickled["description"], pickled["assignment"])  # type: ignore[misc]
        self.load_state_dict(pickled["state"])

    # -- forks -------------------------------------------------------------------------------------

    def _leave_to_parent(self) -> None:
        """Leave the session to the parent, in a forked child, and open another when needed."""
        forks.keep_for_ever(self._detach())
        # Another thread may have held it at the fork, and has no copy here to give it back.
        self._turn = Turn()
        self._reports = []  # their threads are the parent's

    # -- batches and single records ----------------------------------------------------------------

    def _take(self, batch: Batch) -> Batch | Row | bytes:
        settings = self._open_session().settings
        if settings["batch_size"] is not None:
            # At the first batch of all: before it nobody knows how large one is.
            if not self._cursor.batches and isinstance(self._description, StreamSettings):
                rank, world_size = self._rank()
                warn_of_small_budget(self._description, settings["lanes"], world_size, batch)
                if rank == 0:  # it is the same for all
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

    No later batch is taken: the stream's state is that after the last of them, and the next loop
    goes on there. If the run ends before, there are fewer.

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
