"""The types and label maps that the manifests beside existing shards tell."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from streamrec.config.places import is_http
from streamrec.datasets.dataset_manifest import MOST, Manifest
from streamrec.errors import ConfigError, StoreError
from streamrec.flow.bridge import Bridge
from streamrec.formats.examples.specs import VarLenFeature
from streamrec.formats.shards.index import plain_url, shared_ending
from streamrec.plan.order.shard_names import datasets_among
from streamrec.stores.beside import read_beside
from streamrec.stores.folder import Folder
from streamrec.stores.open import Stores

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.datasets.shard_source import ShardSource
    from streamrec.plan.order.shard_names import ShardNames

log = logging.getLogger("streamrec.write")


def known_types(source: ShardSource) -> dict[str, Any]:
    """Return ``features`` and ``labels`` for the writer of a source's records.

    They are told where each of the source's datasets has a manifest, and no two contradict each
    other; else nothing is known.
    """
    datasets = sorted(datasets_among(map(plain_url, source.urls)), key=str)
    manifests = [_manifest(source, names) for names in datasets]
    known = [manifest for manifest in manifests if manifest is not None]
    if len(known) < len(manifests):
        return {}
    features = _union("types", [manifest.features for manifest in known])
    labels = _union("label maps", [manifest.settings.labels or {} for manifest in known])
    return {
        "features": {name: VarLenFeature(kind) for name, kind in features.items()} or None,
        "labels": labels or None,
    }


def _manifest(source: ShardSource, names: ShardNames | None) -> Manifest | None:
    if names is None:
        return None
    url = f"{names.directory}{names.manifest()}"
    if is_http(url) or plain_url(source.urls[0]) != source.urls[0]:
        with suppress(ConfigError, StoreError), Bridge() as loop:
            return loop.call(_read(source, f"{url}{shared_ending(source.urls)}"))
        return None
    return Manifest.parse(Folder(names.directory, source.storage_options).read(names.manifest()))


async def _read(source: ShardSource, url: str) -> Manifest | None:
    stores = Stores(source.storage_options)
    try:
        data = await read_beside(stores, url, source.urls, MOST, what="manifest", remedy="")
        return Manifest.parse(data)
    finally:
        await stores.aclose()


def _union(what: str, mappings: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return all items, or none if two mappings have other values for a name, which is told."""
    union: dict[str, Any] = {}
    for mapping in mappings:
        for name, value in mapping.items():
            if union.setdefault(name, value) != value:
                log.warning(
                    "the %s of the datasets contradict each other: %r is %s in one and %s in "
                    "another; their records are taken as they are, and the new manifest tells no "
                    "%s",
                    *(what, name, union[name], value, what),
                )
                return {}
    return union
