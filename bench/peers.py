"""Other loaders of images, whose shards are made from the same records: tar, and MosaicML's MDS.

Other clients of object stores, too, which read our shards.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench.cases import say
from bench.datasets import IMAGE_BYTES, LABELS, Dataset
from bench.machine import ROOT, versions_in

CLIENTS = ("obstore", "s3dlio", "s3torchconnector", "awscrt")
"""Other clients of object stores, which download and decode nothing."""
PACKAGES = ("torch", "webdataset", "mosaicml-streaming", *CLIENTS)


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
        return None not in (self.versions["torch"], self.versions["mosaicml-streaming"])

    @property
    def clients(self) -> list[str]:
        """Return the clients of object stores that can be measured."""
        has_curl = ["curl"] if shutil.which("curl") else []
        return has_curl + [name for name in CLIENTS if self.versions[name] is not None]

    def missing(self) -> list[str]:
        """Return a line for each loader and client that is missing, with a remedy."""
        parts = {"WebDataset": self.has_web_dataset, "MosaicML Streaming": self.has_mosaic}
        lacking = {name: "it or torch" for name, has in parts.items() if not has}
        lacking |= {name: "it" for name in CLIENTS if self.versions[name] is None}
        advice = "pip install 'streamrec[bench]', or name another interpreter with --peers-python."
        return [f"{name}: {self.python} lacks {what}; {advice}" for name, what in lacking.items()]

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
        program = ("-m", "bench.readers.loaders", "write_mosaic")
        command = [self.python, *program, json.dumps({"directory": str(unfinished), **what})]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        if done.returncode:  # a broken installation of one peer ends no table
            say(f"MosaicML Streaming wrote no shards: {done.stderr.splitlines()[-1:]}")
        else:
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
