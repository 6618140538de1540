"""The part of a stream that owns a session: it is opened when needed, left, and closed."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from streamrec.config import DatasetSettings, StreamSettings, validate
from streamrec.config.arguments import absolute_sources, count_of, numbers_of
from streamrec.config.consistency import check_change
from streamrec.errors import ConfigError
from streamrec.flow import endings
from streamrec.plan.state.position import Position
from streamrec.plan.state.resume_point import LARGEST_STEP
from streamrec.streams import loops, ranks, workers
from streamrec.streams.loops import ComingSession, Lookahead
from streamrec.streams.start import functions_of, logged_settings, open_log, start, start_async
from streamrec.streams.state import Stateful

if TYPE_CHECKING:
    from streamrec.config.keywords import Source
    from streamrec.feeder.functions.sent_functions import SentFunctions
    from streamrec.plan.state.resume_point import ResumePoint
    from streamrec.streams.loops import AsyncSession, PlainSession
    from streamrec.streams.ranks import Assignment, Rank
    from streamrec.streams.start import Description


log = logging.getLogger("streamrec")


class SessionOwner(Stateful):
    """A place in the data with the session that reads there, while there is one.

    Args:
        description: What to read.
        assignment: The rank that reads it.
    """

    def __init__(self, description: Description, assignment: Assignment) -> None:
        log = open_log(description)
        super().__init__(assignment, log)
        if log is not None:
            # Not at exit by itself: there the log is waited for.
            weakref.finalize(self, log.end).atexit = False
        self._description = description
        self._finalizer: weakref.finalize[..., SessionOwner] | None = None
        self._is_empty = False
        """True once it was said that there was no record."""
        self._lookahead = Lookahead()
        self._functions: SentFunctions | None = None
        """The functions with all that they read when the session began."""

    def set_weights(
        self,
        weights: Mapping[str, float],
        *,
        from_step: int,
        sources: Mapping[str, Source] | None = None,
    ) -> None:
        """Change the weights of a mix from a step on; what comes before stays exactly as it was.

        The change is part of the state, so a resumed stream knows it. It replaces all earlier
        changes from that step on. All ranks must make the same call. With
        ``shuffle``, a lane changes with its first window that begins at that step or later.

        Args:
            weights: The weight of each component by its name.
            from_step: The step, as a state counts it; none of its records may have been taken.
            sources: The source of each component that joins the mix, by its name; it takes the
                place of one that an earlier call gave. A program that is resumed later names it in
                ``streamrec.mix``, with the weight 0.

        Raises:
            ConfigError: The stream is not a mix of components that repeat, in batches and without
                filter and pack; the weights are not those of its components; or the step was taken.
                For a feeder's stream, the next batch raises all but the last of these.
        """
        values = numbers_of(weights, "weights")
        step = count_of(from_step, "from_step", most=LARGEST_STEP)
        if step < self._cursor.step:
            raise ConfigError(
                f"step {step} was taken before its weights were set; the first step whose weights "
                f"can change is {self._cursor.step}"
            )
        joined = _joined(self._description, sources or {})
        check_change(joined if isinstance(joined, StreamSettings) else None, step, values)
        self._cursor.change_weights(step, values)
        self._description = joined
        if sources and self._cursor.log is not None and isinstance(joined, StreamSettings):
            self._cursor.log.tell(logged_settings(joined))
        # What was read ahead may be of the weights before.
        self._elsewhere = self._session is not None

    def _check_log(self) -> None:
        """Refuse to deliver what would not be in the audit log."""
        if self._cursor.log is not None:
            self._cursor.log.check()

    def _close_log(self) -> None:
        """Wait until the audit log is written."""
        if self._cursor.log is not None:
            self._cursor.log.close()

    def _check_division(self) -> None:
        workers.check_loader(*self._rank())
        assigned = self._assignment
        workers.check_workers(assigned.made_in if assigned.is_given else None)

    def _start(self) -> tuple[Rank, ResumePoint]:
        self._check_division()
        self._assignment = ranks.log_assignment(self._assignment)
        return self._assignment.rank, self._cursor.resume_point(self._assignment.rank)

    def _begin_ahead(self) -> None:
        """Have a thread open a session for plain code, unless there is one or one is to come."""
        has_failed = isinstance(self._session, ComingSession) and self._session.has_failed
        if self._is_left or has_failed:
            self._close()
        if self._session is None:
            self._functions = functions_of(self._description)
            beginning = partial(start, self._description, *self._start(), self._functions)
            self._hold(ComingSession(beginning))

    def _sync(self) -> PlainSession:
        endings.hold_for_reader()
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
        endings.hold_for_reader()
        if self._is_left or isinstance(self._session, ComingSession):
            await self._aclose()
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

    async def _aclose(self) -> None:
        session = self._detach()
        if session is not None:
            await loops.close_async(session)

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


def _joined(description: Description, sources: Mapping[str, Source]) -> Description:
    """Return the settings of a mix with further components, which have no weight yet.

    Raises:
        ConfigError: A feeder reads, or a component of the name has a weight already.
    """
    if not isinstance(sources, Mapping):
        raise ConfigError(f"sources is {sources!r}; give a mapping from names to URLs or paths")
    if not sources:
        return description
    if not isinstance(description, StreamSettings) or not isinstance(description.source, dict):
        raise ConfigError(
            "a source can join only a mix that this program reads itself; for a feeder's mix, name "
            "it in the feeder's configuration, with the weight 0"
        )
    weights = description.weights or []
    # One without a weight may be given again: its address may have been wrong.
    fixed = {name for _, parts in weights for name, weight in parts.items() if weight}
    if known := sorted(sources.keys() & fixed):
        raise ConfigError(f"the mix has a source for {', '.join(known)} already; leave it out")
    places = {name: absolute_sources(source) for name, source in sources.items()}
    none: Mapping[str, float] = dict.fromkeys(places, 0.0)
    changes = {
        "source": {**description.source, **places},
        "weights": [(first, {**parts, **none}) for first, parts in weights],
    }
    validate(DatasetSettings, {**changes, "epochs": None})
    return description.model_copy(update=changes)
