"""The function that looks into a TFDS folder: its splits, its features and the names of classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamrec.config.arguments import options_of, place_text
from streamrec.config.places import absolute_options, absolute_source
from streamrec.flow.bridge import Bridge

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from streamrec.formats.examples.specs import FeatureSpec


@dataclass(frozen=True)
class TFDSInfo:
    """The facts about a TFDS folder: ``streamrec.TFDSInfo``."""

    name: str
    config: str
    """The name of the builder's configuration; empty: it has none."""
    version: str
    splits: Mapping[str, int]
    """The number of records of each split."""
    features: Mapping[str, FeatureSpec]
    """The spec of each feature, by its name in the records, as in ``"steps/reward"``."""
    refused: Mapping[str, str]
    """The reason why a feature has no spec, by its name."""
    labels: Mapping[str, list[str]]
    """The names of the classes, by the feature that holds their numbers."""


def tfds_info(
    folder: str | PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> TFDSInfo:
    """Read the documents of a TFDS folder: ``streamrec.tfds_info``.

    Args:
        folder: The folder of one version of a dataset, as a URL or a path; it holds
            ``dataset_info.json``.
        storage_options: fsspec's, for the folder's filesystem.

    Raises:
        ConfigError: The folder's name cannot be understood.
        StoreError: A document cannot be read.
        DataError: A document cannot be understood, or the shards are not TFRecords.
    """
    place = absolute_source(place_text(folder))
    options = absolute_options(options_of(storage_options))
    with Bridge() as loop:
        return loop.call(_read(place, options))


async def _read(folder: str, options: Mapping[str, Any]) -> TFDSInfo:
    from streamrec.pipeline.tfds_folder import read_features, read_info, read_labels
    from streamrec.stores.open import Stores

    stores = Stores(options)
    try:
        info = await read_info(stores, folder)
        features = await read_features(stores, folder)
        labels = await read_labels(stores, folder, features)
    finally:
        await stores.aclose()
    return TFDSInfo(
        name=info.name,
        config=info.config,
        version=info.version,
        splits={name: split.records for name, split in info.splits.items()},
        features=features.specs,
        refused=features.refused,
        labels=labels,
    )
