"""The attribution of time: each moment of a run belongs to the one stage that holds it back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from streamrec.flow.stages import STAGES

if TYPE_CHECKING:
    from collections.abc import Callable


class Collector(Protocol):
    """A collector of spans of time, told of each piece of work when it is done, by any thread."""

    def add(self, track: str, name: str, began: float, ended: float, **facts: object) -> None:
        """Keep a span.

        Args:
            track: ``"wait"``, ``"trainer"``, ``"request"``, ``"lane"`` or ``"batch"``.
            name: The name of the work, or of the stage.
            began: Its beginning in seconds, by the clock of :class:`WaitClock`.
            ended: Its end.
            **facts: More to know of it.
        """
        ...


class WaitClock:
    """A clock that charges each moment of a run to one stage: the parts add up to the whole.

    While the consumer waits for a batch, time is charged to what the producer does; else to what
    the consumer does itself. A change of stage costs a reading of the clock and an addition.

    Args:
        clock: Gives the time in seconds. An event loop's own may stand still for a whole turn.
        spans: Collects spans of all stages, and of what they do; ``None``: nobody does.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, spans: Collector | None = None
    ) -> None:
        self.clock = clock
        """Gives the time in seconds."""
        self.spans = spans
        """Collects the spans of the run; ``None``: nobody does."""
        self._since = clock()
        self._consumer: str | None = "client"
        """``None`` while it waits for the producer."""
        self._producer = "order"
        self._inner: str | None = None
        """The stage of the block of :meth:`waiting_for`."""
        self._seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)

    def produce(self, stage: str) -> float:
        """Note what the producer does, or waits for, from now on; return the time."""
        self._charge()
        self._producer = stage
        return self._since

    def consume(self, stage: str | None) -> None:
        """Note what the consumer does from now on; ``None``: it waits for the producer."""
        self._charge()
        self._consumer = stage

    def waiting_for(self, stage: str) -> _WaitBlock:
        """Charge a block to a stage, whatever the producer does, if the consumer waits for it."""
        return _WaitBlock(self, stage)

    def enter(self, stage: str) -> bool:
        """Begin a block of :meth:`waiting_for`; return whether the consumer waits for it."""
        if self._consumer is not None:
            return False
        self.consume(stage)
        self._inner = stage
        return True

    def leave(self) -> None:
        """End a block of :meth:`waiting_for` in which the consumer waited."""
        if self._consumer == self._inner:
            self.consume(None)
        self._inner = None

    def went_over(self, stage: str, moment: float) -> None:
        """Note, in a block of :meth:`waiting_for`, that it waits for another stage since a moment.

        A thread notes the moment, and the consumer learns of it when the thread is done.
        """
        if self._inner is not None and self._consumer == self._inner:
            self._charge(max(moment, self._since))
            self._consumer = self._inner = stage

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each stage until now, without the stages that took none."""
        parts = dict(self._seconds)
        parts[self._consumer or self._producer] += self.clock() - self._since
        return {stage: seconds for stage, seconds in parts.items() if seconds > 0}

    def _charge(self, until: float | None = None) -> None:
        now = self.clock() if until is None else until
        stage = self._consumer or self._producer
        self._seconds[stage] += now - self._since
        if self.spans is not None:
            self.spans.add("wait", stage, self._since, now)
        self._since = now


class _WaitBlock:
    """A block of :meth:`WaitClock.waiting_for`; a generator would take four times as long."""

    __slots__ = ("_charges", "_stage", "_waits")

    def __init__(self, waits: WaitClock, stage: str) -> None:
        self._waits, self._stage, self._charges = waits, stage, False

    def __enter__(self) -> None:
        self._charges = self._waits.enter(self._stage)

    def __exit__(self, *_: object) -> None:
        if self._charges:
            self._waits.leave()
