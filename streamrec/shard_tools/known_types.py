"""The types and label maps that the manifests beside existing shards tell."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from streamrec.formats.examples.specs import VarLenFeature
from streamrec.plan.order.shard_names import datasets_among
from streamrec.shard_tools.dataset_manifest import Manifest
from streamrec.stores.folder import Folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.plan.order.shard_names import ShardNames
    from streamrec.shard_tools.shard_source import ShardSource

__all__ = ["known_types"]

log = logging.getLogger("streamrec.write")


def known_types(source: ShardSource) -> dict[str, Any]:
    """Return ``features`` and ``labels`` for the writer of a source's records.

    They are told where each of the source's datasets has a manifest, and no two contradict each
    other; else nothing is known.
    """
    manifests = [_manifest(source, names) for names in sorted(datasets_among(source.urls), key=str)]
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
    if names.directory.startswith(("http://", "https://")):  # whose parameters sign one name
        return None
    return Manifest.parse(Folder(names.directory, source.storage_options).read(names.manifest()))


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
