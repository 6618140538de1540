"""The types and label maps that the manifests beside existing shards tell."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from streamrec.formats.examples.specs import VarLenFeature
from streamrec.plan.shard_names import ShardNames
from streamrec.shard_tools.dataset_manifest import Manifest
from streamrec.stores.folder import Folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.shard_tools.shard_source import ShardSource

__all__ = ["known_types"]

log = logging.getLogger("streamrec.write")
_SHARD = re.compile(r"(.+/|)([^/]+)-\d{5}-of-\d{5}[^/]*")


def known_types(source: ShardSource) -> dict[str, Any]:
    """Return ``features`` and ``labels`` for the writer of a source's records.

    They are told where each of the source's datasets has a manifest, and no two contradict each
    other; else nothing is known.
    """
    manifests = [_manifest(source, *place) for place in sorted(_places(source))]
    known = [manifest for manifest in manifests if manifest is not None]
    if len(known) < len(manifests):
        return {}
    features = _union("types", [manifest.features for manifest in known])
    labels = _union("label maps", [manifest.settings.labels or {} for manifest in known])
    return {
        "features": {name: VarLenFeature(kind) for name, kind in features.items()} or None,
        "labels": labels or None,
    }


def _places(source: ShardSource) -> set[tuple[str, str]]:
    """Return the directory and the stem of each dataset; an empty stem for shards of no dataset."""
    matches = [_SHARD.fullmatch(url) for url in source.urls]
    return {(match[1], match[2]) if match else ("", "") for match in matches}


def _manifest(source: ShardSource, directory: str, stem: str) -> Manifest | None:
    if not stem or directory.startswith(("http://", "https://")):  # whose parameters sign one name
        return None
    name = ShardNames(directory, stem, "").manifest()
    return Manifest.parse(Folder(directory, source.storage_options).read(name))


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
