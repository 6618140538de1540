"""The audit log of a stream: what its loop takes, in objects of many steps that a thread writes."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum, auto
from queue import SimpleQueue
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrec.errors import AuditFailed, ConfigError, StreamrecError
from streamrec.flow import endings, forks
from streamrec.plan.state.resume_point import for_rank
from streamrec.stores.blocking import write_object
from streamrec.streams.audit_part import LoggedStep, Part, Stretch, entry_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from streamrec.config.cache_and_audit import AuditSettings
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.plan.state.position import Position
    from streamrec.plan.state.resume_point import ResumePoint

    Points = tuple[ResumePoint, ...]
    """The place of a stream: one, or those of all ranks."""

SUFFIX = ".audit"
MOST_STEPS = 10_000
"""The most steps of an object."""
MOST_BYTES = 16 << 20
"""Bytes that the entries of an object take in memory: 2,700 steps of 256 records by shard."""
FRESH = 10.0
"""Seconds after an object in which a saved state begins no other: some jobs save in each step."""

log = logging.getLogger("streamrec")


class LogMark(NamedTuple):
    """A point of a log to which it can go back."""

    entries: int
    held: Held | None
    rows: int


class Held(NamedTuple):
    """A batch of single records, of which some may have been taken."""

    batch: Batch
    before: Points
    begin: int = 0
    """The first row that is not yet logged."""

    def entry(self, rows: int) -> LoggedStep:
        """Return the entry of the next rows."""
        step = self.batch.next_position.step - len(self.batch) + self.begin
        return entry_of(self.batch, step, slice(self.begin, self.begin + rows))


class AuditLog:
    """The log of what is taken of one stream. No call waits for the store, except :meth:`close`.

    Args:
        settings: Its place.
        options: The options of its store, unless the settings have some.
        about: The settings of the stream that :mod:`.audit_check` needs.
        clock: Gives the time in seconds.
    """

    def __init__(
        self,
        settings: AuditSettings,
        options: Mapping[str, Any] | None,
        about: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._about, self._clock = settings, dict(about), clock
        own = settings.storage_options
        self._options = dict((options if own is None else own) or {})
        self._begin()
        forks.watch(self, AuditLog._begin)

    def _begin(self) -> None:
        """Begin anew; in a forked child, what was taken before is the parent's to write."""
        self._writer = PartWriter(self._write, lambda: _OPEN.discard(self))
        self._run = token_hex(4)
        """The name of this writer: no other one overwrites its objects."""
        self._parts = 0
        self._earlier = 0
        """Entries in objects before the present one."""
        self._stretches: list[Stretch] = []
        self._bytes = 0
        self._began = self._clock()
        self._position: Position | None = None
        """The position after the last entry."""
        self._held: Held | None = None
        self._rows = 0
        """Rows taken of the batch that is held."""
        self._skipped: tuple[LoggedStep, Points] | None = None
        """Steps that were skipped since the last entry, and the place before them."""
        self._is_paused = False
        _OPEN.discard(self)

    # -- what is taken -----------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the error by which the log could not be written.

        Raises:
            AuditFailed: It could not be written; the next call has it tried again.
        """
        self._writer.check()

    def take(self, batch: Batch, before: Points) -> None:
        """Log a batch that is one step, and the place before it."""
        if not self._is_paused:
            step = batch.next_position.step - 1
            self._add(entry_of(batch, step), before, batch.next_position)

    def receive(self, batch: Batch, before: Points) -> None:
        """Hold a batch whose rows are taken one by one, and the place before it."""
        if not self._is_paused:
            self._settle()
        self._held, self._rows = Held(batch, before), 0

    def row(self) -> None:
        """Count a row that is taken."""
        self._rows += 1

    def pause(self) -> None:
        """Log nothing of what is taken until :meth:`pass_over`: it is read only to be dropped."""
        self._settle()
        self._is_paused = True

    def pass_over(self, step: int, steps: int, before: Points) -> None:
        """Log that steps were skipped."""
        self._advance()
        self._is_paused = False
        if steps > 0:
            self._skipped = LoggedStep(step, steps, b""), before

    def mark(self) -> LogMark:
        """Return the present point, for :meth:`go_back`."""
        return LogMark(self._entries, self._held, self._rows)

    def go_back(self, mark: LogMark) -> None:
        """Undo what was taken since a mark."""
        self._held, self._rows = mark.held, mark.rows
        while self._entries > mark.entries and self._stretches:
            self._stretches[-1].entries.pop()
            if not self._stretches[-1].entries:
                self._stretches.pop()

    # -- objects -----------------------------------------------------------------------------------

    def save(self) -> None:
        """Begin to write what is not written, as a state is saved: a resume begins after it."""
        if self._clock() - self._began >= FRESH:
            self.cut()

    def tell(self, about: Mapping[str, Any]) -> None:
        """Go on in objects that tell other settings, such as a component that joins a mix."""
        self.cut()
        self._about = dict(about)

    def cut(self) -> None:
        """Begin to write what was taken, and another object after it."""
        self._settle()
        self._log_skipped(self._position)
        stretches, self._stretches = self._stretches, []
        if stretches and self._position is not None:
            self._parts += 1
            self._earlier += sum(len(stretch.entries) for stretch in stretches)
            self._bytes, self._began = 0, self._clock()
            self._writer.add(self._part(stretches, self._position))

    def end(self) -> None:
        """Have the rest written, and do not wait for it: nobody holds the stream any more."""
        self.cut()
        self._writer.end()

    def close(self) -> None:
        """Write the rest, and wait until it is written.

        Raises:
            AuditFailed: It cannot be written.
        """
        self.cut()
        self._writer.close()
        _OPEN.discard(self)

    @property
    def _entries(self) -> int:
        return self._earlier + sum(len(stretch.entries) for stretch in self._stretches)

    def _settle(self) -> None:
        """Log the rows taken of the batch that is held."""
        held, rows = self._held, self._rows
        self._advance()
        if held is not None and rows:
            self._add(held.entry(rows), held.before, held.batch.next_position)

    def _advance(self) -> None:
        """Go on behind the rows taken of the batch that is held."""
        if self._held is not None:
            self._held = self._held._replace(begin=self._held.begin + self._rows)
        self._rows = 0

    def _add(self, entry: LoggedStep, before: Points, position: Position) -> None:
        if self._stretches and self._is_full(position):
            self.cut()
        _OPEN.add(self)
        self._log_skipped(position)
        self._append(entry, before, position)
        # Three arrays of eight bytes for each run.
        self._bytes += 200 + (0 if entry.listed is None else 24 * len(entry.listed.shards))

    def _is_full(self, position: Position) -> bool:
        # The first object has one step, so that a log that cannot be written is told at once.
        return (
            not self._parts
            or self._entries - self._earlier >= MOST_STEPS
            or self._bytes >= MOST_BYTES
            or self._clock() - self._began >= self._settings.every
            or not _is_of_one_rank(self._position, position)
        )

    def _log_skipped(self, position: Position | None) -> None:
        skipped, self._skipped = self._skipped, None
        # Before the first batch of all nobody knows of which rank and dataset they are.
        if skipped is not None and position is not None:
            self._append(*skipped, position)

    def _append(self, entry: LoggedStep, before: Points, position: Position) -> None:
        last = self._stretches[-1] if self._stretches else None
        since = None if self._position is None else self._position.since
        if last is None or last.end != entry.step or since != position.since:
            _check_no_packs(position)
            point = for_rank(before, position.rank, position.world_size)
            self._stretches.append(Stretch(entry.step, point.to_dict()))
        self._stretches[-1].entries.append(entry)
        self._position = position

    def _part(self, stretches: list[Stretch], position: Position) -> Waiting:
        header = {
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "run": self._run,
            "part": self._parts,
            "rank": position.rank,
            "world_size": position.world_size,
            "fingerprint": position.fingerprint.to_dict(),
            "settings": self._about,
        }
        part = Part(header, stretches)
        place = f"rank-{position.rank:05}-of-{position.world_size:05}/{name_of(part)}"
        return Waiting(self._settings.url + place, part)

    def _write(self, url: str, data: bytes) -> None:
        write_object(url, data, self._options, make_directory=True)


def name_of(part: Part) -> str:
    """Return the name of an object in the directory of its rank."""
    spans = [(stretch.step, stretch.end - 1) for stretch in part.stretches] or [(0, 0)]
    first, last = spans[0][0], spans[-1][1]
    run, number = part.header.get("run"), part.header.get("part")
    return f"steps-{first:012}-{last:012}-{run}-{number!s:0>6}{SUFFIX}"


def _is_of_one_rank(one: Position | None, other: Position) -> bool:
    if one is None or (one.rank, one.world_size) != (other.rank, other.world_size):
        return False
    return one.fingerprint is other.fingerprint or one.fingerprint == other.fingerprint


def _check_no_packs(position: Position) -> None:
    if position.fingerprint.has_episodes:
        raise ConfigError(
            "an audit log does not go with episodes: the origin of a window names only its record; "
            "leave one of the two out"
        )
    if position.fingerprint.has_packs:
        raise ConfigError(
            "an audit log does not go with pack: the origin of a pack names only its first record; "
            "leave one of the two out"
        )


_OPEN: set[AuditLog] = set()
"""The logs that have something to write; the interpreter waits for them at its end."""


def _close_all() -> None:
    for one in list(_OPEN):
        try:
            one.close()
        except StreamrecError as error:
            log.error("%s", error)  # noqa: TRY400 - nobody catches it any more


atexit.register(_close_all)  # of an executor's job, which goes on when the main thread has ended
# Before the thread pools end, which stores need: an atexit function is called after that.
endings.after_readers(_close_all)


MOST_WAITING = 8
"""Objects that wait to be written: a store that hangs ends the stream, not its memory."""
DELAYS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds to wait before each further attempt, where the store may answer later."""
PATIENCE = 60.0
"""Seconds that the end of a stream waits until the log is written."""


class Waiting(NamedTuple):
    """An object that waits to be written."""

    url: str
    part: Part


class Wish(Enum):
    """For the thread of a `PartWriter`."""

    WRITE = auto()
    """Write what waits, unless an attempt failed."""
    WRITE_AGAIN = auto()
    END = auto()


class PartWriter:
    """A thread that writes the objects of a log one after the other; a failed one stays the next.

    Args:
        write: Writes the bytes of an object under a URL; it may block.
        on_end: Called when the thread has ended.
    """

    def __init__(self, write: Callable[[str, bytes], None], on_end: Callable[[], None]) -> None:
        self._write = write
        self._on_end = on_end
        self._waiting: deque[Waiting] = deque()
        self._wishes: SimpleQueue[Wish] = SimpleQueue()
        self._is_ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: AuditFailed | None = None
        """Nothing more is tried while it stands."""
        self._raised: AuditFailed | None = None

    def add(self, waiting: Waiting) -> None:
        """Have an object written; nobody waits for it."""
        self._waiting.append(waiting)
        if self._thread is None:
            self._is_ending.clear()
            # A daemon: a store that does not answer must not keep the interpreter from its end.
            self._thread = threading.Thread(target=self._run, name="streamrec-audit", daemon=True)
            self._thread.start()
        self._wishes.put(Wish.WRITE)

    def check(self) -> None:
        """Raise the error of an object that could not be written; the next call tries it again.

        Raises:
            AuditFailed: It could not be written, or too many wait.
        """
        failure = self._failure
        if failure is not None and failure is not self._raised:
            self._raised = failure
            raise failure
        if failure is not None:
            self._try_again()
        if len(self._waiting) > MOST_WAITING:
            raise _failed("the store does not answer", self._waiting[0].url)

    def end(self) -> None:
        """Have the thread end when all is written, and do not wait for it."""
        self._is_ending.set()
        self._wishes.put(Wish.END)

    def close(self) -> None:
        """Write what waits; an object that could not be written is tried again.

        Raises:
            AuditFailed: It is not written.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._try_again()
        self.end()
        thread.join(PATIENCE)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if thread.is_alive():
            raise _failed("the store does not answer", self._waiting[0].url)

    def _try_again(self) -> None:
        self._failure = None
        self._wishes.put(Wish.WRITE_AGAIN)

    def _run(self) -> None:
        while (wish := self._wishes.get()) is not Wish.END:
            if wish is Wish.WRITE_AGAIN:
                self._failure = None
            # After a failure the user mends something first: an attempt before that would fail
            # again, and its failure would be raised after the mend.
            if self._failure is None:
                with suppress(AuditFailed):
                    self._write_all()
        self._on_end()

    def _write_all(self) -> None:
        while self._waiting:
            url, part = self._waiting[0]
            try:
                self._attempt(url, part.encode())
            except Exception as error:  # noqa: BLE001 - of any store; the stream raises it
                # Without the URL that an error of a store begins with: it is told anyway.
                why = error.message if isinstance(error, StreamrecError) else str(error)
                self._failure = _failed(f"{type(error).__name__}: {why}", url)
                raise self._failure from None
            self._waiting.popleft()

    def _attempt(self, url: str, data: bytes) -> None:
        for delay in DELAYS:
            try:
                return self._write(url, data)
            except StreamrecError as error:
                if not error.retryable:
                    raise
            self._is_ending.wait(delay)
        return self._write(url, data)


def _failed(why: str, url: str) -> AuditFailed:
    return AuditFailed(
        f"the audit log cannot be written, so the stream delivers nothing more ({why}); mend that, "
        "and iterate again: the log of what was delivered is kept, and is written then",
        url=url,
    )
