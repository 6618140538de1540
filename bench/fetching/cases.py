"""The cases of whole readings: from a store, plain or with a long tail, and from a web server."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bench.fetching.images import BATCH_SIZE, BUCKET, FOR, WAYS, stream_arguments
from bench.measure import Case, Comparison
from bench.services import feeder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bench.fetching.images import Images, Place
    from bench.measure import ServiceInfo

FAR = (32, 64, 96, 128)
"""Numbers of requests in flight for downloads where there is latency to hide."""
NEAR = (16, 32, 64, 96)
"""Numbers of requests in flight for downloads without latency."""
DOWNLOAD = "download, {} in flight"
WITHOUT_HEDGING = "{}, no hedging"
WITHOUT_ORDER = "{}, ordered=False"
FEW_BATCHES = 4
"""Number of batches that are taken where only the first one counts."""


def of_download(group: str) -> tuple[Comparison, ...]:
    """Return the comparison with the best of the downloads in the group."""
    titles = tuple(f"{group}: {DOWNLOAD.format(count)}" for count in {*FAR, *NEAR})
    return (Comparison("of download", titles),)


def behind_store(images: Images, place: Place) -> list[Case]:
    """Return downloads with several numbers of requests in flight, and streams with defaults."""
    whole = images.passes
    arguments_of = [
        *((DOWNLOAD.format(count), _download(images, count)) for count in FAR),
        *((way.name, stream_arguments(images, whole, way)) for way in WAYS),
    ]
    return [_case(place, name, arguments) for name, arguments in arguments_of]


def first_batches(images: Images, place: Place) -> list[Case]:
    """Return streams that end after a few batches: they take a second, and run many times."""
    rows = []
    for way in WAYS:
        arguments = stream_arguments(images, images.passes, way, batches=FEW_BATCHES)
        rows.append(_case(place, way.name, arguments))
    return rows


def ceiling(images: Images, place: Place) -> list[Case]:
    """Return downloads that drop the bytes: they show that the store limits no other reader."""
    return [
        _case(place, f"receive and drop, {count} in flight", _download(images, count, keep=False))
        for count in NEAR[:2]
    ]


def with_tail(images: Images, place: Place) -> list[Case]:
    """Return streams from a store where some requests stall, also without hedging or an order."""
    whole, (loop, plain, *_) = images.passes, WAYS
    arguments_of = {way.name: stream_arguments(images, whole, way) for way in (loop, plain)}
    arguments_of[WITHOUT_HEDGING.format(loop.name)] = {**arguments_of[loop.name], "hedging": False}
    arguments_of[WITHOUT_ORDER.format(loop.name)] = {**arguments_of[loop.name], "ordered": False}
    return [_case(place, name, arguments) for name, arguments in arguments_of.items()]


def through_feeder(images: Images, place: Place) -> list[Case]:
    """Return downloads, a stream, and a stream of a feeder that reads from the store."""
    settings = {
        "source": f"s3://{BUCKET}/*",
        "batch_size": BATCH_SIZE,
        "storage_options": place.storage_options,
        "features": {
            name: {"kind": "fixed", **plain} for name, plain in images.template.features.items()
        },
    }

    @contextlib.contextmanager
    def serving() -> Iterator[ServiceInfo]:
        with feeder("images", settings) as (address, pid):
            yield {"address": address}, {"feeder": pid}

    whole = stream_arguments(images, images.passes, FOR)
    return [
        *(_case(place, DOWNLOAD.format(count), _download(images, count)) for count in FAR),
        _case(place, FOR.name, whole),
        replace(_case(place, "for, through a feeder", whole), service=serving),
    ]


def _case(place: Place, name: str, arguments: Mapping[str, Any]) -> Case:
    module = "bench.readers.download" if "in_flight" in arguments else "bench.readers.stream"
    return Case(
        place.group,
        name,
        module,
        {**arguments, "storage_options": place.storage_options},
        environment=place.environment,
        companions={"store": place.served.pid},
        counters=place.served,
        comparisons=of_download(place.group),
    )


def _download(images: Images, count: int, *, keep: bool = True) -> dict[str, Any]:
    objects = [(BUCKET, name, size) for name, size in images.names(images.passes)]
    return {"objects": objects, "in_flight": count, "keep": keep, "passes": images.passes}


def from_files(
    images: Images, group: str, server: tuple[str, int], environment: Mapping[str, str]
) -> list[Case]:
    """Return downloads and streams from a web server: URLs instead of a bucket, and no latency.

    Args:
        images: Images that the server serves.
        group: Heading of the table.
        server: Endpoint of the server, and the id of its process.
        environment: Variables by which clients trust the server.
    """
    endpoint, pid = server
    whole = images.passes
    urls = [(f"{endpoint}/{name}", size) for name, size in images.names(whole)]
    place = {"source": f"{endpoint}/{images.braces(whole)}", "storage_options": None}
    arguments_of: dict[str, dict[str, Any]] = {
        DOWNLOAD.format(count): {"urls": urls, "in_flight": count, "keep": True, "passes": whole}
        for count in NEAR
    }
    arguments_of |= {way.name: stream_arguments(images, whole, way, **place) for way in WAYS}
    return [
        Case(
            group,
            name,
            "bench.readers.download" if "in_flight" in arguments else "bench.readers.stream",
            arguments,
            environment=environment,
            companions={"store": pid},
            comparisons=of_download(group),
        )
        for name, arguments in arguments_of.items()
    ]
