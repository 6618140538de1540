"""The class names that a dataset's manifest keeps: ``streamrec.labels``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamrec.config.arguments import options_of, source_texts
from streamrec.datasets.dataset_manifest import MOST, Manifest
from streamrec.errors import ConfigError, ObjectNotFound
from streamrec.flow.bridge import Bridge
from streamrec.flow.cleanup import all_of
from streamrec.formats.shards.index import plain_url, shared_ending
from streamrec.masking import masked
from streamrec.plan.order.shard_names import datasets_among
from streamrec.stores.beside import read_beside
from streamrec.stores.open import Stores

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.config.keywords import Source

WHO_KEEPS = (
    "streamrec write keeps those of picture folders and of ClassLabel columns, and ShardedWriter "
    "takes labels={'cat': 0, ...}"
)


def labels(
    source: Source,
    feature: str | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, int]:
    """Return the number of each class by its name: ``streamrec.labels``.

    They are read from the manifest beside the shards, which ``streamrec write`` fills for picture
    folders and for columns of Hugging Face's ``ClassLabel``, and ``ShardedWriter(labels=...)``.

    Args:
        source: As for ``streamrec.open``; of several datasets, all must have the same numbers.
        feature: The feature that holds the numbers; needed where several features have names.
        storage_options: fsspec's, for the source's filesystem.

    Raises:
        ConfigError: A dataset has no manifest or no label names, or two contradict each other.
        StoreError: The shards cannot be listed, or a manifest cannot be read.
    """
    texts, options = source_texts(source), options_of(storage_options)
    with Bridge() as loop:
        manifests = loop.call(_manifests(texts, options))
    union: dict[str, int] = {}
    for url, manifest in manifests.items():
        for name, number in _numbers(masked(url), manifest, feature).items():
            if union.setdefault(name, number) != number:
                raise ConfigError(
                    f"the datasets contradict each other: the class {name!r} is {union[name]} in "
                    f"one, and {number} in {masked(url)}; read them apart"
                )
    return union


async def _manifests(source: str | list[str], options: dict[str, Any]) -> dict[str, Manifest]:
    """Return the manifests of all datasets of a source, by their URLs."""
    stores = Stores(options)
    shards: list[str] = []
    remedy = "give labels a source in s3:// or gs://"

    async def manifest_at(url: str) -> Manifest:
        try:
            data = await read_beside(stores, url, shards, MOST, what="manifest", remedy=remedy)
        except ObjectNotFound:
            raise ConfigError(
                f"{masked(url)}: there is no manifest, so no label names; {WHO_KEEPS}"
            ) from None
        found = Manifest.parse(data)
        if found is None:
            raise ConfigError(f"{masked(url)}: this manifest is damaged; write the dataset anew")
        return found

    try:
        shards += [found.url for found in await stores.resolve(source)]
        names = sorted(datasets_among(map(plain_url, shards)), key=str)
        if None in names:
            raise ConfigError(
                f"{masked(shards[0])}: not all shards have names such as x-00000-of-00004, so "
                f"they are of no dataset with a manifest and label names; {WHO_KEEPS}"
            )
        ending = shared_ending(shards)
        urls = [f"{each.directory}{each.manifest()}{ending}" for each in names if each is not None]
        return dict(zip(urls, await all_of(map(manifest_at, urls)), strict=True))
    finally:
        await stores.aclose()


def _numbers(where: str, manifest: Manifest, feature: str | None) -> dict[str, int]:
    """Return the numbers of a feature's classes."""
    kept = manifest.settings.labels
    if not kept:
        raise ConfigError(f"{where}: the manifest has no label names; {WHO_KEEPS}")
    of_feature = {name: value for name, value in kept.items() if isinstance(value, dict)}
    plain = {name: value for name, value in kept.items() if isinstance(value, int)}
    if feature is None and not of_feature:
        return plain
    if feature is None and len(of_feature) == 1:
        return next(iter(of_feature.values()))
    if feature in of_feature:
        return of_feature[feature]
    if plain and feature in manifest.features:
        return plain
    names = sorted(of_feature or manifest.features)
    asked = (
        "several features have label names"
        if feature is None
        else (f"the feature {feature!r} has no label names")
    )
    raise ConfigError(f"{where}: {asked}; name one of {', '.join(map(repr, names))}")
