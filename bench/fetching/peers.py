"""Other loaders: the images in their formats, tar and MosaicML's MDS, and their cases."""

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
from bench.fetching.images import BATCH_SIZE, BUCKET
from bench.machine import ROOT, versions_in
from bench.measure import Case
from bench.progress import say
from bench.services import STORE_KEYS

if TYPE_CHECKING:
    from pathlib import Path

    from bench.datasets import Dataset
    from bench.fetching.images import Place

PACKAGES = ("torch", "webdataset", "mosaicml-streaming")


@dataclass(frozen=True)
class Peers:
    """The other loaders that take part.

    Args:
        python: Interpreter that has their packages.
        versions: Versions of their packages; ``None`` for what is missing.
        root: Directory of buckets for their shards.
    """

    python: str
    versions: dict[str, str | None]
    root: Path

    @property
    def has_web_dataset(self) -> bool:
        """Return whether WebDataset can be measured."""
        return None not in (self.versions["torch"], self.versions["webdataset"])

    @property
    def has_mosaic(self) -> bool:
        """Return whether MosaicML Streaming can be measured."""
        return None not in (self.versions["torch"], self.versions["mosaicml-streaming"])

    def missing(self) -> list[str]:
        """Return a line for each loader that is missing, with a remedy."""
        parts = {"WebDataset": self.has_web_dataset, "MosaicML Streaming": self.has_mosaic}
        advice = f"{self.python} lacks it or torch; pip install 'streamrec[bench]', or name "
        advice += "another interpreter with --peers-python."
        return [f"{name}: {advice}" for name, has in parts.items() if not has]

    def make(self, template: Dataset) -> None:
        """Write the shards of the loaders that take part, unless they are there."""
        self.root.mkdir(parents=True, exist_ok=True)
        if self.has_web_dataset and not self.tars(template).is_dir():
            say(f"writing tar shards of {template.name} for WebDataset")
            _write_tars(template, self.tars(template))
        if self.has_mosaic and not self.mds(template).is_dir():
            say(f"writing MDS shards of {template.name} for MosaicML Streaming")
            self._write_mds(template, self.mds(template))

    def tars(self, template: Dataset) -> Path:
        """Return the directory of the tar shards, which are as many as the TFRecord shards."""
        return self.root / f"tars-{template.name}"

    def mds(self, template: Dataset) -> Path:
        """Return the directory of the MDS shards."""
        return self.root / f"mds-{template.name}"

    def _write_mds(self, template: Dataset, target: Path) -> None:
        unfinished = target.with_name(f".{target.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        what = {"records": template.records, "image_bytes": IMAGE_BYTES, "labels": LABELS}
        arguments = {"write": {"directory": str(unfinished), **what}}
        command = [self.python, "-m", "bench.readers.mosaic", json.dumps(arguments)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        unfinished.rename(target)


def find_peers(python: str, root: Path) -> Peers:
    """Return the loaders that an interpreter has."""
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
    """Return cases of other loaders, over one pass of the images, and of a loop over s3fs."""
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
                arguments,
                python=peers.python,
                environment=environment,
                companions={"store": place.peers.pid},
                counters=place.peers,
                comparisons=of_download(place.group),
            )
            for name, module, arguments in rows
        ),
    ]


Row = tuple[str, str, dict[str, Any]]
"""Name, module and arguments of a case."""


def _web_dataset(directory: Path, endpoint: str) -> list[Row]:
    paths = sorted(directory.iterdir())
    urls = [f"{endpoint}/{directory.name}/{path.name}" for path in paths]
    arguments = {**_common(paths), "urls": urls}
    return [
        (
            f"WebDataset over curl, {n} workers",
            "bench.readers.web_dataset",
            {**arguments, "workers": n},
        )
        for n in (0, 2, 4)
    ]


def _mosaic(directory: Path) -> list[Row]:
    arguments = {**_common(list(directory.iterdir())), "remote": f"s3://{directory.name}"}
    return [
        (f"MosaicML Streaming, {n} workers", "bench.readers.mosaic", {**arguments, "workers": n})
        for n in (0, 2)
    ]


def _common(paths: list[Path]) -> dict[str, Any]:
    stored = sum(path.stat().st_size for path in paths)
    return {"stored_bytes": stored, "passes": 1, "batch_size": BATCH_SIZE}


def _s3fs(template: Dataset, place: Place) -> Case:
    arguments = {"bucket": BUCKET, "shards": template.shards, "passes": 1, "batch_size": BATCH_SIZE}
    return Case(
        place.group,
        "s3fs file and loop",
        "bench.readers.s3fs_loop",
        {**arguments, "storage_options": place.storage_options},
        environment=place.environment,
        companions={"store": place.served.pid},
        counters=place.served,
        comparisons=of_download(place.group),
    )
