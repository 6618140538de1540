"""The one table of what may hold a job back, stages and resources; and the clock of the stages.

A verdict goes by the names alone. The words stand beside them for people, and nothing reads them
back: whoever rewords one changes a text and no verdict.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from streamrec.plan.reading.concurrency import Limit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


Box: TypeAlias = Literal["list", "fetch", "order", "queue", "decode", "wire", "client"]
"""A stage, or several that a person sees as one."""
Group: TypeAlias = Literal["listing", "network", "loop", "decoding", "transform", "trainer", "wire"]
"""The kind of resource that a stage waits for."""
Bottleneck: TypeAlias = Literal[
    "listing",
    "store latency",
    "connection bandwidth",
    "link",
    "throttling",
    "memory budget",
    "max_concurrency",
    "event loop",
    "decoding",
    "transform",
    "trainer",
    "feeder",
    "cores",
]
"""The resource that holds a job back. ``cores``: this machine's, which it or others use up;
``memory budget`` and ``max_concurrency``: the settings, which allow no more requests."""


@dataclass(frozen=True, kw_only=True)
class RunStage:
    """A stage on the path of a byte."""

    box: Box
    group: Group
    noun: str
    """The words for what its time goes to."""
    awaited: str
    """The words for what one waits for, and for what that depends on."""
    meaning: str
    """The sentence of the documentation: what happens in a moment that counts as its."""


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A resource that may hold a job back."""

    words: str
    headline: str
    cause: Limit | None = None
    """The reason that the engine itself gives where it is this resource; ``None``: it gives none.
    """
    meanwhile: str = ""
    """What this cause does while somebody waits for the store."""


TABLE: Final[Mapping[str, RunStage]] = MappingProxyType(
    {
        "list": RunStage(
            box="list",
            group="listing",
            noun="the listing",
            awaited="datasets to be opened",
            meaning="the dataset was not open yet: its shards were listed, its index was read",
        ),
        "first_byte": RunStage(
            box="fetch",
            group="network",
            noun="first bytes",
            awaited="the first bytes of each read: the latency of the store, or of the disk",
            meaning=(
                "the next range had been requested, and no byte of it had come: the latency of the "
                "store"
            ),
        ),
        "body": RunStage(
            box="fetch",
            group="network",
            noun="bodies",
            awaited="the bytes that follow: the rate of the store, the link or the disk",
            meaning=(
                "the rest of that range was on its way: the rate of the connection, or of the link"
            ),
        ),
        "cache": RunStage(
            box="fetch",
            # Reading a batch from the cache takes the threads that decode.
            group="decoding",
            noun="cache",
            awaited="the cache of batches",
            meaning="a batch was read from the cache of batches",
        ),
        "decompress": RunStage(
            box="order",
            group="decoding",
            noun="decompressing",
            awaited="decompression: this machine's cores",
            meaning="received bytes were decompressed",
        ),
        "scan": RunStage(
            box="order",
            group="loop",
            noun="scanning",
            awaited="records to be found and checked: this machine's cores",
            meaning="records were found in received bytes, and their CRCs checked",
        ),
        "quarantine": RunStage(
            box="order",
            # A damaged span is written to a store.
            group="network",
            noun="quarantine",
            awaited="damaged spans to be stored",
            meaning="a damaged span was being stored",
        ),
        "filter": RunStage(
            box="order",
            group="transform",
            noun="the filter",
            awaited="the filter",
            meaning="the user's filter ran",
        ),
        "pack": RunStage(
            box="order",
            group="decoding",
            noun="pack",
            awaited="packing: this machine's cores",
            meaning="rows were packed",
        ),
        "order": RunStage(
            box="order",
            group="loop",
            noun="ordering and the event loop",
            awaited="shuffling and merging: this machine's cores",
            meaning=(
                "records were shuffled and merged, or the event loop was busy with something else"
            ),
        ),
        "queue": RunStage(
            box="queue",
            group="loop",
            noun="queue",
            awaited="batches to be handed over: this machine's cores",
            meaning=(
                "a batch was handed over, or a replica waited for the shared reading, whose stages "
                "also count"
            ),
        ),
        "decode": RunStage(
            box="decode",
            group="decoding",
            noun="decoding",
            awaited="decoding: this machine's cores",
            meaning="the batch was decoded",
        ),
        "transform": RunStage(
            box="decode",
            group="transform",
            noun="map and transform",
            awaited="map or transform, functions of yours",
            meaning="the user's `map` or `transform` ran",
        ),
        "wire": RunStage(
            box="wire",
            group="wire",
            noun="the way from the feeder",
            awaited="batches to be sent: the network, or this machine's cores",
            meaning="the batch was being sent",
        ),
        "client": RunStage(
            box="client",
            group="trainer",
            noun="the trainer's steps",
            awaited="the loop over the stream: the trainer",
            meaning=(
                "the client had granted no credit or read nothing of what was sent, or the loop "
                "over the stream was doing something else: the trainer is the bottleneck, as it "
                "should be"
            ),
        ),
    }
)
"""The stages by name, in the order in which a byte passes them."""

STAGES: Final = tuple(TABLE)
"""The names of the stages."""

BOXES: Final[Mapping[Box, tuple[str, ...]]] = MappingProxyType(
    {
        box: tuple(name for name, stage in TABLE.items() if stage.box == box)
        for box in dict.fromkeys(stage.box for stage in TABLE.values())
    }
)
"""The stages of each box, both in the order of the path."""

GROUPS: Final[Mapping[Group, tuple[Bottleneck, ...]]] = MappingProxyType(
    {
        "listing": ("listing",),
        "network": (
            *("store latency", "connection bandwidth", "link", "throttling"),
            *("memory budget", "max_concurrency"),
        ),
        "loop": ("event loop",),
        "decoding": ("decoding",),
        "transform": ("transform",),
        "trainer": ("trainer",),
        "wire": ("link",),
    }
)
"""The resources that a stage of each group may wait for."""

RESOURCES: Final[Mapping[Bottleneck, Resource]] = MappingProxyType(
    {
        "listing": Resource(
            words="the listing of the shards", headline="Listing the shards holds this job back."
        ),
        "store latency": Resource(
            words="the latency of the store",
            headline="The latency of the store holds this job back.",
        ),
        "connection bandwidth": Resource(
            words="the bandwidth of the connections to the store",
            headline="The bandwidth of each connection holds this job back.",
        ),
        "link": Resource(
            words="the link, or what the other end gives to this machine",
            headline="The link holds this job back.",
        ),
        "throttling": Resource(
            words="the store's limit of requests",
            headline="The store throttles this job.",
            cause=Limit.THROTTLED,
            meanwhile="the store asks to slow down",
        ),
        "memory budget": Resource(
            words="the setting memory_budget, whose buffers are full",
            headline="The setting memory_budget holds this job back.",
            cause=Limit.BUFFERS,
            meanwhile="the buffers of memory_budget are full",
        ),
        "max_concurrency": Resource(
            words="the setting max_concurrency",
            headline="The setting max_concurrency holds this job back.",
            cause=Limit.MAXIMUM,
            meanwhile="max_concurrency allows no more requests at a time",
        ),
        "event loop": Resource(
            words="the event loop's core",
            headline="The event loop holds this job back: it is one core.",
        ),
        "decoding": Resource(words="decoding", headline="Decoding holds this job back."),
        "transform": Resource(
            words="the functions filter, map and transform",
            headline="The transform holds this job back.",
        ),
        "trainer": Resource(
            words="the trainer", headline="The trainer is the bottleneck, as it should be."
        ),
        "feeder": Resource(words="the feeder", headline="The feeder holds this job back."),
        "cores": Resource(
            words="this machine's cores", headline="This machine's cores hold this job back."
        ),
    }
)
"""The resources by name."""


# -- the attribution of time: each moment belongs to the one stage that holds the run back ---------


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
        # Unless it has gone on to something else meanwhile, which then stays.
        if self._consumer == self._inner:
            self.consume(None)
        self._inner = None

    def went_over(self, stage: str, moment: float) -> None:
        """Note, in a block of :meth:`waiting_for`, that it waits for another stage since a moment.

        A thread notes the moment, and the consumer learns of it when the thread is done.
        """
        if self._inner is not None and self._consumer == self._inner:
            # What lies before the last change is charged already.
            self._charge(max(moment, self._since))
            self._consumer = self._inner = stage

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each stage until now, without the stages that took none."""
        # A copy with the present moment: asking must not change what is charged.
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
