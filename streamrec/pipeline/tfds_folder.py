"""The reading of a TFDS folder's documents: which records a split has, and their features."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from streamrec.config.places import is_http, unescape
from streamrec.errors import MalformedIndex, ObjectNotFound
from streamrec.flow.cleanup import all_of
from streamrec.plan.order.shard_order import ShardPart
from streamrec.stores.base.protocol import ObjectInfo
from streamrec.stores.base.source_text import with_one_name
from streamrec.stores.open import read_beside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.formats.tfds.dataset_info import FolderInfo
    from streamrec.formats.tfds.folder_features import FolderFeatures
    from streamrec.stores.open import Stores

LARGEST = 256 << 20
"""The most bytes of a document; one with the statistics of many features has some MB."""


class Listed(NamedTuple):
    """The shards that a source names, or the splits of a TFDS folder, in their order."""

    objects: Sequence[ObjectInfo]
    parts: Sequence[ShardPart] = ()
    """The records of each shard, of a folder."""
    wholes: Sequence[Sequence[ObjectInfo]] = ()
    """All shards of each split that is named; an index describes these together."""

    def shuffled(self) -> Listed:
        """Return the shards in the order of their names: a shuffle does not depend on another."""
        pairs = sorted(zip(self.objects, self.parts, strict=True), key=lambda p: (p[0].url, p[1]))
        return self._replace(objects=[pair[0] for pair in pairs], parts=[pair[1] for pair in pairs])


async def read_info(stores: Stores, folder: str) -> FolderInfo:
    """Read what a folder says of its splits.

    Raises:
        ObjectNotFound: The folder has no such document.
        StoreError: It cannot be read.
        DataError: It cannot be understood.
    """
    from streamrec.formats.tfds.dataset_info import INFO, FolderInfo  # few streams read a folder

    lacking = (
        f"there is no {INFO} here: with split, the source is the folder of one version of a "
        "TFDS dataset, such as gs://bucket/mnist/3.0.1; correct the source, or leave split out"
    )
    return FolderInfo.parse(*await _document(stores, folder, INFO, lacking))


async def read_features(stores: Stores, folder: str) -> FolderFeatures:
    """Read the features of a folder.

    Raises:
        ObjectNotFound: The folder has no such document.
        StoreError: It cannot be read.
        DataError: It cannot be understood.
    """
    from streamrec.formats.tfds.folder_features import FEATURES, FolderFeatures  # as above

    lacking = f"there is no {FEATURES} here, as in folders of TFDS before 4.0; give features"
    return FolderFeatures.parse(*await _document(stores, folder, FEATURES, lacking))


async def _document(stores: Stores, folder: str, name: str, lacking: str) -> tuple[bytes, str]:
    """Return the bytes and the URL of a document; ``lacking`` is said where there is none."""
    url = place_in(folder, name)
    try:
        return await _read(stores, url), url
    except ObjectNotFound:
        raise ObjectNotFound(lacking, url=url) from None


async def read_labels(
    stores: Stores, folder: str, features: FolderFeatures
) -> dict[str, list[str]]:
    """Read the names of the classes, by the feature that holds their numbers.

    A dataset may number its classes without names: its folder lacks the document then.

    Raises:
        StoreError: A document cannot be read.
        DataError: It is not UTF-8.
    """

    async def names(document: str) -> list[str]:
        url = place_in(folder, document)
        try:
            data = await _read(stores, url)
        except ObjectNotFound:
            return []
        try:
            return [line.strip() for line in data.decode().split("\n") if line.strip()]
        except UnicodeDecodeError:
            raise MalformedIndex("the names of classes are not UTF-8", url=url) from None

    found = await all_of(map(names, features.labels.values()))
    return {name: labels for name, labels in zip(features.labels, found, strict=True) if labels}


async def _read(stores: Stores, url: str) -> bytes:
    return await read_beside(
        stores, url, (), LARGEST, what="document", remedy="sign the URL of a folder"
    )


def split_shards(info: FolderInfo, folder: str, split: str) -> Listed:
    """Return the shards of splits.

    Args:
        info: The facts about the folder.
        folder: Its URL or path.
        split: The splits, as the setting names them.

    Raises:
        ConfigError: There are none.
    """
    shards = info.shards(split)
    named = dict.fromkeys(shard.split for shard in shards)
    return Listed(
        [ObjectInfo(place_in(folder, shard.name)) for shard in shards],
        [ShardPart(shard.first, shard.records, shard.total) for shard in shards],
        [
            [ObjectInfo(place_in(folder, file)) for file in info.splits[name].names]
            for name in named
        ],
    )


def place_in(folder: str, name: str) -> str:
    """Return the place of an object in a folder; a query of http stays behind it."""
    # A folder is a plain name: what is escaped in it stands for itself.
    place, mark, query = folder.partition("?") if is_http(folder) else (folder, "", "")
    return f"{unescape(with_one_name(place)).rstrip('/')}/{name}{mark}{query}"
