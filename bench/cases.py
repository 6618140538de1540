"""The rows of :mod:`bench.first`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.measure import Case, Comparison, Help
from bench.services import STORE_KEYS, feeder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.datasets import Dataset

__all__ = ["BATCH_SIZE", "Scene", "all_cases"]

BATCH_SIZE = 64
IN_FLIGHT = (8, 16, 32, 64)
BEHIND_STORE = "behind the store"
DOWNLOADS = {count: f"download, {count} in flight" for count in IN_FLIGHT}
DROPS = {count: f"receive and drop, {count} in flight" for count in IN_FLIGHT[-2:]}
OF_DOWNLOAD = tuple(
    Comparison(label, tuple(f"{BEHIND_STORE}: {name}" for name in names.values()))
    for label, names in (("of download", DOWNLOADS), ("of drop", DROPS))
)


@dataclass(frozen=True)
class Scene:
    """What the cases have in common.

    Args:
        dataset: What is read.
        endpoint: Of the store that serves it.
        store: The store's process.
    """

    dataset: Dataset
    endpoint: str
    store: int

    @property
    def storage_options(self) -> dict[str, Any]:
        """Of the store."""
        return {"endpoint_url": self.endpoint, **STORE_KEYS}

    def order(self, **more: Any) -> dict[str, Any]:
        """For the stream's reader: an idle trainer in a plain ``for`` behind the store."""
        common = {"loop": None, "iterations": 0, "beside": None, "batch_size": BATCH_SIZE}
        place = {"source": self.dataset.url, "storage_options": self.storage_options}
        return {**common, **place, "features": self.dataset.features, **more}


@dataclass(frozen=True)
class Way:
    """One way to read a stream."""

    name: str
    loop: str | None
    """Whose event loop ``async for`` runs in; ``None``: a plain ``for``."""
    engine: str | None = None

    @property
    def order(self) -> dict[str, Any]:
        """What it means for the reader."""
        return {"loop": self.loop, "engine": self.engine}


FOR = Way("for", None)
FOR_THREAD = Way('for, engine="thread"', None, "thread")
ASYNC = Way("async for, uvloop", "uvloop")
ASYNC_PLAIN = Way("async for, asyncio", "asyncio")


def all_cases(scene: Scene) -> list[Case]:
    """In the order of the table."""
    return [
        *(_download(scene, name, count, keep=True) for count, name in DOWNLOADS.items()),
        *(_download(scene, name, count, keep=False) for count, name in DROPS.items()),
        *(_remote(scene, way) for way in (FOR, FOR_THREAD, ASYNC, ASYNC_PLAIN)),
        _through_feeder(scene),
    ]


def _download(scene: Scene, name: str, count: int, *, keep: bool) -> Case:
    dataset = scene.dataset
    objects = [(dataset.name, path.name, path.stat().st_size) for path in dataset.paths]
    order = {"objects": objects, "in_flight": count, "keep": keep}
    return Case(
        BEHIND_STORE,
        name,
        "bench.readers.download",
        {**order, "storage_options": scene.storage_options},
        companions={"store": scene.store},
        comparisons=OF_DOWNLOAD,
    )


def _remote(scene: Scene, way: Way) -> Case:
    return Case(
        BEHIND_STORE,
        way.name,
        "bench.readers.stream",
        scene.order(**way.order),
        companions={"store": scene.store},
        comparisons=OF_DOWNLOAD,
    )


def _through_feeder(scene: Scene) -> Case:
    settings = {
        "source": scene.dataset.url,
        "batch_size": BATCH_SIZE,
        "storage_options": scene.storage_options,
        "features": {
            name: {"kind": "fixed", **plain} for name, plain in scene.dataset.features.items()
        },
    }

    @contextlib.contextmanager
    def serving() -> Iterator[Help]:
        with feeder("images", settings) as (address, pid):
            yield {"address": address}, {"feeder": pid}

    return Case(
        BEHIND_STORE,
        "for, through a feeder",
        "bench.readers.stream",
        scene.order(),
        service=serving,
        companions={"store": scene.store},
        comparisons=OF_DOWNLOAD,
    )
