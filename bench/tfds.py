"""TFDS folders read by streamrec beside tensorflow_datasets: records, and windows of episodes.

Both read the same local folder, which tensorflow_datasets has written, with all its features; they
check CRCs, decode pictures and give batches of NumPy's arrays. Windows have 8 steps of episodes of
100, and are shuffled among 512 windows. A frame that several windows have counts in each of them.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from bench.cases import Case, Result, say
from bench.harness import Aim, Column, Report, Run, benchmark, tables_of
from streamrec.datasets.sample_pictures import sample_pictures

RATE, CPU = "records_per_second", "cpu_microseconds_per_record"
SECONDS = 10.0
"""Seconds that each reading takes: what it has read ahead in the end hardly counts."""
STEPS, LENGTH, SHUFFLED = 100, 8, 512
"""Steps of an episode and of a window, and the windows of the shuffle."""
OURS, THEIRS, BARE = "streamrec", "tensorflow_datasets", "decoders alone"


class Group(NamedTuple):
    """A dataset, and what is read of it."""

    name: str
    file: str
    rows: int
    """The records, which are episodes if there is a stride."""
    batch_size: int
    aim: float
    """The least CPU time of tensorflow_datasets over that of streamrec: the ratio of their rates
    where both use all cores, and one that other work on the machine hardly changes."""
    side: int = 0
    encoding: str = ""
    stride: int = 0
    """Steps from one window to the next; 0: records are read."""

    @property
    def frames(self) -> int:
        """The pictures of a record or window."""
        return LENGTH if self.stride else 1

    @property
    def windows(self) -> int:
        """The windows of an episode."""
        return (STEPS - LENGTH) // self.stride + 1


JPEG = "episodes of 224 x 224, JPEG", "episodes_jpeg", 48, 32, 5.0, 224, "jpeg"
PNG = "episodes of 84 x 84, PNG", "episodes_png", 96, 32, 5.0, 84, "png"
GROUPS = (
    Group("photographs of 224 x 224", "photographs", 1600, 64, 3.0, 224, "jpeg"),
    Group("26 integers, 13 floats and a label", "clicks", 40_000, 1024, 3.0),
    *(
        Group(f"{kind[0]}, stride {stride}", *kind[1:], stride=stride)
        for kind in (JPEG, PNG)
        for stride in (LENGTH, 1)
    ),
)


@benchmark("tfds", repeat=3, only=True, data=True)
def main(run: Run) -> Report:
    if find_spec(THEIRS) is None:
        run.skipped.append(f"{THEIRS}, which writes the folders, is not installed.")
        return Report("")
    run.measure([case for group in GROUPS for case in cases(group, run.data / "tfds")], judge)
    measured = [one for one in run.results if one.measurements]
    return Report(tables_of(COLUMNS, measured), aims=list(aims_of(measured)))


COLUMNS = (
    Column("read by", lambda result: result.case.name, str),
    Column("records or windows/s", RATE),
    Column("pictures/s", "pictures_per_second"),
    Column("distinct pictures/s", "distinct_pictures_per_second"),
    Column("CPU, µs a record or window", CPU),
    Column("most memory, MB", "peak_megabytes"),
)


def cases(group: Group, place: Path) -> Iterator[Case]:
    folder = write_folder(place, group)
    settings: dict[str, Any] = {"folder": str(folder), "batch_size": group.batch_size}
    readers = {OURS: OURS, THEIRS: THEIRS}
    if group.stride:
        size = sum(path.stat().st_size for path in folder.glob("*.tfrecord*"))
        shuffled_bytes = size * SHUFFLED // (group.rows * group.windows)
        settings |= {"length": LENGTH, "stride": group.stride, "shuffled": SHUFFLED}
        settings |= {"shuffled_bytes": shuffled_bytes}
        readers = {OURS: f"{OURS}, windows", THEIRS: f"{THEIRS}, windows"}
        readers |= {BARE: BARE} if group.stride == LENGTH else {}
    for name, reader in readers.items():
        arguments = {"reader": reader, "settings": settings, "seconds": SECONDS}
        yield Case(group.name, name, "readers.tfds_folders read", arguments)


def judge(case: Case, report: Mapping[str, Any]) -> dict[str, float]:
    """Return the rates, the CPU time of a record or window, and the memory."""
    [group] = [one for one in GROUPS if one.name == case.group]
    rate, cpu = report["records"] / report["seconds"], sum(report["cpu_seconds"].values())
    figures = {
        RATE: rate,
        CPU: cpu / report["records"] * 1e6,
        "peak_megabytes": sum(report["peak_megabytes"].values()),
    }
    if group.side:
        figures["pictures_per_second"] = rate * group.frames
        shared = 1.0
        if group.stride and case.name != BARE:
            distinct = (group.windows - 1) * group.stride + LENGTH
            shared = max(1.0, group.windows * LENGTH / distinct)
        figures["distinct_pictures_per_second"] = rate * group.frames / shared
    return figures


def aims_of(found: Sequence[Result]) -> Iterator[Aim]:
    by_title = {result.case.title: result for result in found}
    for group in GROUPS:
        ours, theirs = (by_title.get(f"{group.name}: {reader}") for reader in (OURS, THEIRS))
        if ours and theirs:
            less = _over(theirs.median(CPU), ours.median(CPU))
            yield Aim(f"{group.name}: CPU time of {THEIRS} over its", "times", group.aim, less)
            if group.stride:
                memory = ours.median("peak_megabytes")
                yield Aim(f"{group.name}: memory", "MB", 4000, memory, least=False)


def _over(theirs: float | None, ours: float | None) -> float | None:
    return theirs / ours if ours and theirs else None


# -- the folders -----------------------------------------------------------------------------------


def write_folder(place: Path, group: Group) -> Path:
    """Write a folder if it is not there; return its path."""
    folder = place / group.file / "1.0.0"
    if folder.exists():
        return folder
    say(f"writing {group.file}")
    os.environ.setdefault("TFDS_DISABLE_TELEMETRY", "1")
    tfds: Any = import_module(THEIRS)
    content = clicks(tfds) if not group.side else photographs(tfds, group)
    if group.stride:
        content = episodes(tfds, group)
    features, row = content
    tfds.dataset_builders.store_as_tfds_dataset(
        name=group.file,
        version="1.0.0",
        features=tfds.features.FeaturesDict(features),
        split_datasets={"train": ((str(number), row(number)) for number in range(group.rows))},
        data_dir=place,
        download_config=tfds.download.DownloadConfig(num_shards=8),
    )
    return folder


def photographs(tfds: Any, group: Group) -> tuple[dict[str, Any], Any]:
    """Return the features of photographs with a label, and a function that makes a row."""
    pictures = [np.asarray(one.resize((group.side, group.side))) for one in _photographs()]
    image = tfds.features.Image(shape=pictures[0].shape, encoding_format=group.encoding)
    features = {"image": image, "label": np.int64}
    return features, lambda n: {"image": pictures[n % len(pictures)], "label": n}


def clicks(_: Any) -> tuple[dict[str, Any], Any]:
    """Return the features of small records, and a function that makes a row."""
    tensor = import_module(THEIRS).features.Tensor(shape=(13,), dtype=np.float32)
    names = [f"c{column}" for column in range(26)]
    random = np.random.default_rng(0)

    def row(number: int) -> dict[str, Any]:
        integers = dict(zip(names, random.integers(0, 1 << 20, 26), strict=True))
        return {**integers, "dense": random.random(13, np.float32), "label": number % 2}

    return {**dict.fromkeys(names, np.int64), "dense": tensor, "label": np.int64}, row


def episodes(tfds: Any, group: Group) -> tuple[dict[str, Any], Any]:
    """Return the features of episodes, and a function that makes one: a camera that moves."""
    side = group.side
    scenes = [np.asarray(one.resize((side + STEPS, side + STEPS))) for one in _photographs()]
    image = tfds.features.Image(shape=(side, side, 3), encoding_format=group.encoding)
    action = tfds.features.Tensor(shape=(7,), dtype=np.float32)
    step = {"observation": {"image": image}, "action": action, "number": np.int64}

    def row(number: int) -> dict[str, Any]:
        scene = scenes[number % len(scenes)]
        crops = (scene[at : at + side, at : at + side] for at in range(STEPS))
        steps = [
            {"observation": {"image": crop}, "action": np.full(7, at, np.float32), "number": at}
            for at, crop in enumerate(crops)
        ]
        return {"steps": steps}

    return {"steps": tfds.features.Dataset(step)}, row


def _photographs() -> list[Image.Image]:
    return [Image.open(io.BytesIO(encoded)).convert("RGB") for encoded in sample_pictures()]


if __name__ == "__main__":
    main()
