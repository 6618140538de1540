"""The one table of what may hold a job back: the stages of a run, and the resources behind them.

A verdict goes by the names alone. The words stand beside them for people, and nothing reads them
back: whoever rewords one changes a text and no verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from streamrec.plan.reading.concurrency import Limit

if TYPE_CHECKING:
    from collections.abc import Mapping

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
                "the range that is needed next was asked for, and no byte of it had come: the "
                "latency of the store"
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
                "a batch was handed over, or a replica waited for the shared reading, whose own "
                "stages count, too"
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
                "the client had granted no credit, or the loop over the stream did something else: "
                "the trainer is the bottleneck, as it should be"
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
            words="the listing of the shards",
            headline="Listing the shards holds this job back.",
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
        "decoding": Resource(
            words="decoding",
            headline="Decoding holds this job back.",
        ),
        "transform": Resource(
            words="the functions filter, map and transform",
            headline="The transform holds this job back.",
        ),
        "trainer": Resource(
            words="the trainer",
            headline="The trainer is the bottleneck, as it should be.",
        ),
        "feeder": Resource(
            words="the feeder",
            headline="The feeder holds this job back.",
        ),
        "cores": Resource(
            words="this machine's cores",
            headline="This machine's cores hold this job back.",
        ),
    }
)
"""The resources by name."""
