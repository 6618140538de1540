"""The rows of whole readings: behind a store, with a long tail, and from a web server's files."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bench.fetching.scene import BUCKET, WAYS, stream_order
from bench.measure import Case, Comparison

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.fetching.scene import Pictures, Place

__all__ = [
    "behind_store",
    "ceiling",
    "first_batches",
    "from_files",
    "has_hedging",
    "of_download",
    "with_tail",
]

FAR = (32, 64, 96, 128)
"""Requests in flight of the downloads, where there is latency to hide."""
NEAR = (16, 32, 64, 96)
"""The same where there is none."""
DOWNLOAD = "download, {} in flight"
WITHOUT_HEDGING = "{}, no hedging"
WITHOUT_ORDER = "{}, ordered=False"
FEW_BATCHES = 4
"""That are taken where the first is what counts."""


def of_download(group: str) -> tuple[Comparison, ...]:
    """Held against the best of the downloads in the group."""
    titles = tuple(f"{group}: {DOWNLOAD.format(count)}" for count in {*FAR, *NEAR})
    return (Comparison("of download", titles),)


def behind_store(pictures: Pictures, place: Place) -> list[Case]:
    """Downloads at several settings, and the stream at its default ones."""
    whole = pictures.passes
    orders = [
        *((DOWNLOAD.format(count), _download(pictures, count)) for count in FAR),
        *((way.name, stream_order(pictures, whole, way)) for way in WAYS),
    ]
    return [_case(place, name, order) for name, order in orders]


def first_batches(pictures: Pictures, place: Place) -> list[Case]:
    """The stream's beginnings alone: they take a second, and can be measured many times."""
    rows = []
    for way in WAYS:
        order = stream_order(pictures, pictures.passes, way, batches=FEW_BATCHES)
        rows.append(_case(place, way.name, order))
    return rows


def ceiling(pictures: Pictures, place: Place) -> list[Case]:
    """What the store gives to whoever drops the bytes: it must not be what limits others."""
    return [
        _case(place, f"receive and drop, {count} in flight", _download(pictures, count, keep=False))
        for count in NEAR[:2]
    ]


def with_tail(pictures: Pictures, place: Place) -> list[Case]:
    """Streams from a store where some requests stall: with and without hedging, and an order."""
    whole, (loop, plain, *_) = pictures.passes, WAYS
    orders = {way.name: stream_order(pictures, whole, way) for way in (loop, plain)}
    if has_hedging():
        orders[WITHOUT_HEDGING.format(loop.name)] = {**orders[loop.name], "hedging": False}
    orders[WITHOUT_ORDER.format(loop.name)] = {**orders[loop.name], "ordered": False}
    return [_case(place, name, order) for name, order in orders.items()]


def has_hedging() -> bool:
    """Whether this streamrec hedges."""
    return find_spec("streamrec.plan.hedging") is not None


def _case(place: Place, name: str, order: Mapping[str, Any]) -> Case:
    module = "bench.readers.download" if "in_flight" in order else "bench.readers.stream"
    return Case(
        place.group,
        name,
        module,
        {**order, "storage_options": place.storage_options},
        environment=place.environment,
        companions={"store": place.served.pid},
        ledger=place.served,
        comparisons=of_download(place.group),
    )


def _download(pictures: Pictures, count: int, *, keep: bool = True) -> dict[str, Any]:
    objects = [(BUCKET, name, size) for name, size in pictures.names(pictures.passes)]
    return {"objects": objects, "in_flight": count, "keep": keep, "passes": pictures.passes}


def from_files(
    pictures: Pictures, group: str, server: tuple[str, int], environment: Mapping[str, str]
) -> list[Case]:
    """The same from a web server: URLs instead of a bucket, and no latency.

    Args:
        pictures: What it serves.
        group: The heading.
        server: Its endpoint and its process.
        environment: What clients need to trust it.
    """
    endpoint, pid = server
    whole = pictures.passes
    urls = [(f"{endpoint}/{name}", size) for name, size in pictures.names(whole)]
    place = {"source": f"{endpoint}/{pictures.braces(whole)}", "storage_options": None}
    orders: dict[str, dict[str, Any]] = {
        DOWNLOAD.format(count): {"urls": urls, "in_flight": count, "keep": True, "passes": whole}
        for count in NEAR
    }
    orders |= {way.name: stream_order(pictures, whole, way, **place) for way in WAYS}
    return [
        Case(
            group,
            name,
            "bench.readers.download" if "in_flight" in order else "bench.readers.stream",
            order,
            environment=environment,
            companions={"store": pid},
            comparisons=of_download(group),
        )
        for name, order in orders.items()
    ]
