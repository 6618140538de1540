"""The watch of the ranks of a job over one another, which names the one that holds it back.

They write for one another on boards: the key-value stores by which torch.distributed and JAX found
one another. Nothing here is a collective: a rank that is late keeps no other from writing or
reading.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter, deque
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from streamrec.plan.state.fingerprint import digest
from streamrec.report.pace import (
    StreamPace,
    describe_late,
    describe_silent,
    late_rank,
    pace_between,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BEATS = 3
"""Beats over which ranks are compared. A rank that writes nothing for as many is silent."""
LONGEST_BEAT = 10.0
"""The most seconds of a beat: so a paused rank is named 30 to 50 s after its last word, as its
word is read up to a beat after it was written, and the judge looks once a beat."""


def beats_of(period: float) -> int:
    """Return the number of beats in a period.

    Args:
        period: Seconds of the period.
    """
    return max(BEATS, math.ceil(period / LONGEST_BEAT))


class LastBeats:
    """The figures of a stream over its last beats.

    Args:
        clock: Gives the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beats: deque[tuple[float, Mapping[str, Any]]] = deque(maxlen=BEATS + 1)

    def beat(self, statistics: Mapping[str, Any]) -> StreamPace | None:
        """End a beat; return the figures of the last three, or ``None`` before there are three.

        Args:
            statistics: ``stream.statistics()`` now.
        """
        if self._beats and not self._beats[-1][1]["batches"] and statistics["batches"]:
            # The first batch takes some ranks longer, as files and connections are opened for it.
            self._beats.clear()
        now = self._clock()
        self._beats.append((now, statistics))
        began, before = self._beats[0]
        if len(self._beats) <= BEATS:
            return None
        # Two calls in one moment would divide by zero.
        return pace_between(before, statistics, max(now - began, 1e-6))


class News(NamedTuple):
    """The last news of a rank."""

    text: str
    came: float
    """The time at which this rank saw it first. Clocks of other hosts do not matter."""
    host: str
    is_open: bool
    """False: its stream is closed."""
    pace: StreamPace | None
    """``None``: its stream has just begun."""
    changes: str
    """A digest of the changes of a mix's weights."""
    since: float
    """The time at which this rank saw these changes first."""


class RankWatch:
    """A watch over the ranks of a job, which tells of the one that holds it back.

    Each rank writes once a beat how it fares. The first rank that is not silent itself reads what
    all have written, and judges.

    Args:
        board: The board of the ranks.
        period: Seconds in which one sentence is enough.
        host: The name of this host.
        clock: Gives the time in seconds.
    """

    def __init__(
        self, board: Board, period: float, host: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        beat = period / beats_of(period)
        self._board = board
        # The last of these beats may come a little early.
        self._patience = BEATS * beat - beat / 2
        self._rest = period - beat / 2
        self._host = host
        self._clock = clock
        self._looked = clock()
        self._told = -math.inf
        self._number = 0
        self._changes = ""
        self._news: dict[int, News] = {}

    def look(self, pace: StreamPace | None, changes: str = "") -> str | None:
        """Write how this rank fares; return the sentence about a late rank, for one to log.

        Args:
            pace: The last beats of this rank; ``None``: its stream has just begun.
            changes: The changes of its mix's weights, as a fingerprint has them.
        """
        now = self._clock()
        if now > self._looked + self._patience:
            # This process was paused. It cannot tell who was silent meanwhile.
            self._news.clear()
        self._looked = now
        self._changes = changes and digest(changes)
        self._write(pace, is_open=True)
        if any(self._tells(rank) for rank in range(self._board.rank)):
            return None
        for rank in range(self._board.size):
            self._read(rank)
        if now < self._told + self._rest or (line := self._judge()) is None:
            return None
        self._told = now
        return line

    def leave(self) -> None:
        """Write that the stream of this rank is closed."""
        self._write(None, is_open=False)

    def _write(self, pace: StreamPace | None, *, is_open: bool) -> None:
        self._number += 1
        figures = pace and asdict(pace)
        news = {"number": self._number, "host": self._host, "is_open": is_open, "pace": figures}
        self._board.write(json.dumps({**news, "changes": self._changes}))

    def _read(self, rank: int) -> News | None:
        text = self._board.read(rank)
        if text is not None and (rank not in self._news or text != self._news[rank].text):
            news, now, before = json.loads(text), self._clock(), self._news.get(rank)
            pace = None if news["pace"] is None else StreamPace(**news["pace"])
            is_same = before is not None and before.changes == news["changes"]
            since = before.since if before is not None and is_same else now
            self._news[rank] = News(
                text, now, news["host"], news["is_open"], pace, news["changes"], since
            )
        return self._news.get(rank)

    def _tells(self, rank: int) -> bool:
        """Return whether a rank has written lately, and so will judge."""
        news = self._read(rank)
        return news is not None and news.is_open and not self._is_silent(news)

    def _is_silent(self, news: News) -> bool:
        return self._clock() - news.came > self._patience

    def _judge(self) -> str | None:
        news = {rank: one for rank, one in sorted(self._news.items()) if one.is_open}
        for rank, one in news.items():
            if self._is_silent(one):
                return describe_silent(rank, one.host, self._clock() - one.came)
        if (line := self._other_changes(news)) is not None:
            return line
        paces = {rank: one.pace for rank, one in news.items() if one.pace is not None}
        late = late_rank(paces)
        return None if late is None else describe_late(late, news[late].host, paces)

    def _other_changes(self, news: Mapping[int, News]) -> str | None:
        """Return the sentence about a rank whose weights of a mix changed in another way."""
        # The ranks do not make their calls at one moment.
        if any(self._clock() - one.since < self._patience for one in news.values()):
            return None
        counted = Counter(one.changes for one in news.values())
        if len(counted) < 2:
            return None
        usual = counted.most_common(1)[0][0]
        odd = next(rank for rank, one in news.items() if one.changes != usual)
        other = next(rank for rank, one in news.items() if one.changes == usual)
        return (
            f"rank {odd} on {news[odd].host} has other changes of the mix's weights than rank "
            f"{other}, so the ranks do not read one order; stop the job, and go on from a state "
            "before the change, with the same calls of set_weights on all ranks"
        )


class Board(Protocol):
    """A board with a place for each rank."""

    @property
    def rank(self) -> int:
        """The rank of this process."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def write(self, text: str) -> None:
        """Put a text in this rank's place, instead of the last one."""

    def read(self, rank: int) -> str | None:
        """Return the text in a rank's place, at once; ``None``: there is none yet."""


class TorchBoard:
    """A board in the store of torch.distributed's default group.

    Args:
        topic: The name of what is written about, the same on all ranks.
        distributed: The module ``torch.distributed``, initialised.
    """

    def __init__(self, topic: str, distributed: Any) -> None:
        # The public way, a store of our own, would need a port that each rank is told.
        store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001
        # With a connection of its own where torch has that: another thread may wait in the store,
        # and lets no other call begin.
        self._store = store.clone() if hasattr(store, "clone") else store
        self._topic = topic
        self.rank: int = distributed.get_rank()
        self.size: int = distributed.get_world_size()

    def write(self, text: str) -> None:
        """Put a text in this rank's place."""
        self._store.set(self._key(self.rank), text)

    def read(self, rank: int) -> str | None:
        """Return the text in a rank's place."""
        # To get what is not there yet would wait for it.
        if not self._store.check([self._key(rank)]):
            return None
        text: bytes = self._store.get(self._key(rank))
        return text.decode()

    def _key(self, rank: int) -> str:
        return f"streamrec/{self._topic}/{rank}"


class JaxBoard:
    """A board in the store of ``jax.distributed``.

    Args:
        topic: The name of what is written about, the same on all ranks.
        jax: The module ``jax``, whose ``distributed`` is initialised.
    """

    def __init__(self, topic: str, jax: Any) -> None:
        # There is no public way to it; Orbax takes the same.
        self._client = jax._src.distributed.global_state.client  # noqa: SLF001
        self._folder = f"streamrec/{topic}"
        self.rank: int = jax.process_index()
        self.size: int = jax.process_count()

    def write(self, text: str) -> None:
        """Put a text in this rank's place."""
        key = f"{self._folder}/{self.rank}/now"
        self._client.key_value_set(key, text, allow_overwrite=True)

    def read(self, rank: int) -> str | None:
        """Return the text in a rank's place."""
        # All keys of a folder: to get a key that is not there yet would wait for it.
        entries = self._client.key_value_dir_get(f"{self._folder}/{rank}/")
        return next((text for _, text in entries), None)


def find_board(topic: str) -> Board | None:
    """Return the board of the framework that is initialised; ``None``: there is none.

    Imports and initialises nothing.

    Args:
        topic: The name of what is written about, the same on all ranks.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return TorchBoard(topic, distributed)
    jax = sys.modules.get("jax")
    is_initialized: Callable[[], bool] = getattr(
        getattr(jax, "distributed", None), "is_initialized", bool
    )
    return JaxBoard(topic, jax) if is_initialized() else None
