"""Helpers of the tests of written datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamrec.datasets.dataset_manifest import Manifest
from streamrec.formats.shards.index import Index
from streamrec.streams.sources import read_records

if TYPE_CHECKING:
    from pathlib import Path


def names(directory: Path) -> list[str]:
    """Return the names of all files, with the hidden ones."""
    return sorted(path.name for path in directory.iterdir())


def records(directory: Path, stem: str = "x") -> list[list[bytes]]:
    """Return the records of each shard."""
    shards = sorted(directory.glob(f"{stem}-?????-of-?????"))
    shards += sorted(directory.glob(f"{stem}-?????-of-?????.tfrecord"))
    return [[bytes(record) for record in read_records(str(shard))] for shard in shards]


def contents(directory: Path) -> dict[str, Any]:
    """Return all files' contents; of an index, what does not depend on the files' times."""
    return comparable({path.name: path.read_bytes() for path in directory.iterdir()})


def comparable(objects: dict[str, bytes]) -> dict[str, Any]:
    """Return contents as they are, but of an index what does not depend on the objects' times."""
    found: dict[str, Any] = dict(objects)
    for name, data in objects.items():
        if name.endswith(".streamrec-index"):
            index = Index.parse(data, url=name)
            found[name] = index.digest(), [entry.name for entry in index.entries]
    return found


def manifest(directory: Path, stem: str = "x") -> Manifest:
    found = Manifest.parse((directory / f"{stem}.streamrec-manifest.json").read_bytes())
    assert found is not None
    return found
