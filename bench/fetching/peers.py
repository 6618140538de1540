"""The same images in the formats of other loaders: tar shards, and MosaicML's MDS shards."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from bench.datasets import IMAGE_BYTES, LABELS
from bench.fetching.cases import of_download
from bench.fetching.scene import BATCH_SIZE, BUCKET
from bench.machine import ROOT, versions_in
from bench.measure import Case
from bench.services import STORE_KEYS

if TYPE_CHECKING:
    from pathlib import Path

    from bench.datasets import Dataset
    from bench.fetching.scene import Place

__all__ = ["Peers", "find_peers", "slow_peers"]

PACKAGES = ("torch", "webdataset", "mosaicml-streaming")


@dataclass(frozen=True)
class Peers:
    """Who takes part.

    Args:
        python: The interpreter that has them.
        versions: Of their packages; ``None`` for what is missing.
        root: A directory of buckets for their shards.
    """

    python: str
    versions: dict[str, str | None]
    root: Path

    @property
    def has_web_dataset(self) -> bool:
        """Whether it can be measured."""
        return None not in (self.versions["torch"], self.versions["webdataset"])

    @property
    def has_mosaic(self) -> bool:
        """Whether it can be measured."""
        return None not in (self.versions["torch"], self.versions["mosaicml-streaming"])

    def missing(self) -> list[str]:
        """Who is not, and what to do about it."""
        parts = {"WebDataset": self.has_web_dataset, "MosaicML Streaming": self.has_mosaic}
        advice = f"{self.python} lacks it or torch; pip install 'streamrec[bench]', or name "
        advice += "another interpreter with --peers-python."
        return [f"{name}: {advice}" for name, has in parts.items() if not has]

    def make(self, template: Dataset) -> None:
        """Write the shards of those that take part, unless they are there."""
        self.root.mkdir(parents=True, exist_ok=True)
        if self.has_web_dataset and not self.tars(template).is_dir():
            _write_tars(template, self.tars(template))
        if self.has_mosaic and not self.mds(template).is_dir():
            self._write_mds(template, self.mds(template))

    def tars(self, template: Dataset) -> Path:
        """The directory of tar shards, as many as TFRecord ones."""
        return self.root / f"tars-{template.name}"

    def mds(self, template: Dataset) -> Path:
        """The directory of MDS shards."""
        return self.root / f"mds-{template.name}"

    def _write_mds(self, template: Dataset, target: Path) -> None:
        unfinished = target.with_name(f".{target.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        what = {"records": template.records, "image_bytes": IMAGE_BYTES, "labels": LABELS}
        order = {"write": {"directory": str(unfinished), **what}}
        command = [self.python, "-m", "bench.readers.mosaic", json.dumps(order)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        unfinished.rename(target)


def find_peers(python: str, root: Path) -> Peers:
    """See what an interpreter has."""
    return Peers(python, versions_in(python, PACKAGES), root)


def _write_tars(template: Dataset, target: Path) -> None:
    unfinished = target.with_name(f".{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    per_shard = template.records // template.shards
    for shard in range(template.shards):
        with tarfile.open(unfinished / f"images-{shard:05}.tar", "w") as tar:
            for number in range(shard * per_shard, (shard + 1) * per_shard):
                _add(tar, f"{number:08}.img", Random(number).randbytes(IMAGE_BYTES))
                _add(tar, f"{number:08}.cls", str(number % LABELS).encode())
    unfinished.rename(target)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def slow_peers(template: Dataset, place: Place, peers: Peers) -> list[Case]:
    """Other loaders, over one pass of the images, in their own formats; and a loop over s3fs."""
    assert place.peers is not None
    endpoint = place.peers.endpoint
    environment = {
        **place.environment,
        "S3_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": STORE_KEYS["key"],
        "AWS_SECRET_ACCESS_KEY": STORE_KEYS["secret"],
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    rows = [
        *(_web_dataset(peers.tars(template), endpoint) if peers.has_web_dataset else []),
        *(_mosaic(peers.mds(template)) if peers.has_mosaic else []),
    ]
    return [
        _s3fs(template, place),
        *(
            Case(
                place.group,
                name,
                module,
                order,
                python=peers.python,
                environment=environment,
                companions={"store": place.peers.pid},
                ledger=place.peers,
                comparisons=of_download(place.group),
            )
            for name, module, order in rows
        ),
    ]


Row = tuple[str, str, dict[str, Any]]
"""Name, module and order."""


def _web_dataset(directory: Path, endpoint: str) -> list[Row]:
    paths = sorted(directory.iterdir())
    urls = [f"{endpoint}/{directory.name}/{path.name}" for path in paths]
    order = {**_common(paths), "urls": urls}
    return [
        (f"WebDataset over curl, {n} workers", "bench.readers.web_dataset", {**order, "workers": n})
        for n in (0, 2, 4)
    ]


def _mosaic(directory: Path) -> list[Row]:
    order = {**_common(list(directory.iterdir())), "remote": f"s3://{directory.name}"}
    return [
        (f"MosaicML Streaming, {n} workers", "bench.readers.mosaic", {**order, "workers": n})
        for n in (0, 2)
    ]


def _common(paths: list[Path]) -> dict[str, Any]:
    stored = sum(path.stat().st_size for path in paths)
    return {"stored_bytes": stored, "passes": 1, "batch_size": BATCH_SIZE}


def _s3fs(template: Dataset, place: Place) -> Case:
    order = {"bucket": BUCKET, "shards": template.shards, "passes": 1, "batch_size": BATCH_SIZE}
    return Case(
        place.group,
        "s3fs file and loop",
        "bench.readers.s3fs_loop",
        {**order, "storage_options": place.storage_options},
        environment=place.environment,
        companions={"store": place.served.pid},
        ledger=place.served,
        comparisons=of_download(place.group),
    )
