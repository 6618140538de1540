"""Encoded pictures to arrays, in two threads: streams beside tf.data and the libraries alone.

The pictures are the demo's photographs, and those of scikit-image where it is installed. Streams
and tf.data read a local shard, check CRCs and parse Examples besides; the libraries decode bytes
that are in memory. All have two threads. What is not installed is left out, and said.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

import streamrec as sr
from bench.cases import Case, Result, say
from bench.harness import AIMS, Aim, Column, Report, Run, benchmark, table_of
from streamrec.datasets import pictures

RATE = "pictures_per_second"
SECONDS = 1.0
"""Seconds that each reading takes."""
COPIES = 40
"""Number of times that each picture is in a shard."""
SIDE = 224
LIBRARIES = {
    "streamrec": "streamrec",
    "tf.data": "tensorflow",
    "torchvision": "torchvision",
    "DALI": "nvidia.dali",
    "cv2": "cv2",
    "simplejpeg": "simplejpeg",
    "Pillow": "PIL",
}
"""Modules that the readers need."""
ONE_FORMAT = "simplejpeg"
"""The reader of JPEGs alone."""
OF_TF_DATA, OF_BARE = 1.5, 0.95
"""Aims: the rate over that of tf.data, and over that of the library that decodes."""


class Group(NamedTuple):
    """A table: pictures, and what is done with them."""

    name: str
    file: str
    shape: tuple[int, int] | None
    resize: tuple[int, int] | None
    bare: str
    """The library that decodes them for streamrec."""


GROUPS = (
    Group("photographs as JPEG", "whole.jpeg.tfrecord", None, None, "simplejpeg"),
    Group("JPEG of 224 x 224", "small.jpeg.tfrecord", (SIDE, SIDE), None, "simplejpeg"),
    Group("PNG of 224 x 224", "small.png.tfrecord", (SIDE, SIDE), None, "Pillow"),
    Group("photographs to 64 x 64", "whole.jpeg.tfrecord", None, (64, 64), "simplejpeg"),
)


@benchmark("images", repeat=5, only=True, data=True)
def main(run: Run) -> Report:
    run.skipped += [
        f"{reader}: {module} is not installed."
        for reader, module in LIBRARIES.items()
        if not is_installed(reader)
    ]
    folder = run.data / "pictures"
    write_shards(folder)
    run.measure(list(cases(folder)), judge)
    aims = list(aims_of(run.results))
    measured = [one for one in run.results if one.measurements]
    groups = [[one for one in measured if one.case.group == group.name] for group in GROUPS]
    tables = [table_of(columns(one[0].case.group), one) for one in groups if one]
    text = "\n\n".join([*tables, table_of(AIMS, aims)])
    return Report(text, {"aims": [aim.facts() for aim in aims]})


def columns(group: str) -> tuple[Column, ...]:
    return (
        Column(group, lambda result: result.case.name, str),
        Column("pictures/s", RATE),
        Column("least", lambda result: min(result.values(RATE))),
        Column("most", lambda result: max(result.values(RATE))),
        Column("CPU, µs a picture", "cpu_microseconds_per_picture"),
    )


def photographs() -> Iterator[Path]:
    """Yield the files of real pictures."""
    yield from sorted(Path(pictures.__path__[0]).glob("*.jpg"))
    if find_spec("skimage"):
        import skimage

        yield from sorted(Path(skimage.__path__[0], "data").glob("*.jpg"))


def write_shards(folder: Path) -> None:
    """Write each picture as it is, and small as JPEG and PNG."""
    say("writing the pictures")
    folder.mkdir(parents=True, exist_ok=True)
    encoded: dict[str, list[bytes]] = {group.file: [] for group in GROUPS}
    for path in photographs():
        small = Image.open(path).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        encoded["whole.jpeg.tfrecord"].append(path.read_bytes())
        encoded["small.jpeg.tfrecord"].append(_encode(small, "JPEG", quality=90))
        encoded["small.png.tfrecord"].append(_encode(small, "PNG"))
    for file, all_of_it in encoded.items():
        with sr.TFRecordWriter(str(folder / file)) as writer:
            for _ in range(COPIES):
                writer.write_many({"image": contents} for contents in all_of_it)


def _encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def cases(folder: Path) -> Iterator[Case]:
    for group in GROUPS:
        for reader in filter(is_installed, LIBRARIES):
            if reader != ONE_FORMAT or group.bare == reader:
                settings = (str(folder / group.file), group.shape, group.resize)
                arguments = {"reader": reader, "settings": settings, "seconds": SECONDS}
                yield Case(group.name, reader, "readers.pictures decode", arguments)


def is_installed(reader: str) -> bool:
    try:
        return find_spec(LIBRARIES[reader]) is not None
    except ModuleNotFoundError:  # of the package that holds it
        return False


def judge(_: Case, report: Mapping[str, Any]) -> dict[str, float]:
    """Return the rate, and the CPU time of a picture."""
    cpu = report["cpu_seconds"]["client"]
    return {
        RATE: report["records"] / report["seconds"],
        "cpu_microseconds_per_picture": cpu / report["records"] * 1e6,
    }


def aims_of(found: Sequence[Result]) -> Iterator[Aim]:
    rates = {result.case.title: result.median(RATE) for result in found}
    for group in GROUPS:
        own = rates.get(f"{group.name}: streamrec")
        for other, aim in (("tf.data", OF_TF_DATA), (group.bare, OF_BARE)):
            compared = rates.get(f"{group.name}: {other}")
            if own and compared:
                yield Aim(f"{group.name}: over {other}", "times", aim, own / compared)


if __name__ == "__main__":
    main()
