"""The rows: who finds, checks and parses records, and on which data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bench.measure import Case, Comparison

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bench.datasets import Dataset

__all__ = [
    "BATCH_SIZES",
    "BY_SIZE",
    "BY_SIZE_WAY",
    "CRC_ALONE",
    "FRAMES",
    "MEMORY",
    "PARSED",
    "PARSING",
    "PIPELINES",
    "STREAMS",
    "WHOLE",
    "Scene",
    "all_cases",
    "by_size",
    "memory_cases",
    "title",
]

FRAMES = "frames and CRC"
PARSING = "Examples to columns"
WHOLE = "from files to batches"
BY_SIZE = "from files to batches, by batch size"
MEMORY = "memory"
CRC_ALONE = "crc32c package, no frames"
PARSED = {False: "tf.io.parse_example", True: "the same in a tf.function"}
ONE_BY_ONE = "tf.data, one by one to NumPy"
PIPELINES = {False: "tf.data", True: "tf.data, batched within files"}
"""Batches of all files' records mixed, as most do it; and of one file each, which is faster."""
STREAMS: dict[str, dict[str, Any]] = {
    "async for": {"loop": "uvloop"},
    'for, engine="thread"': {"loop": None, "engine": "thread"},
    "for": {"loop": None},
}
BATCH_SIZES = (128, 512, 2048, 8192)
BY_SIZE_WAY = "async for"
BY_SIZE_KINDS = ("recsys", "tokens")
"""What is small: of large records no trainer takes thousands at a time."""
MEMORY_EPOCHS = 10
READ_BYTES = 1 << 20
"""Of tf.data's readers: on two cores faster than 8 MiB, and than TensorFlow's default."""
MORE_EPOCHS = {"recsys": 4, "tokens": 2}
"""What is small is read more often, so that a stream's start weighs alike."""
LARGE = 20_000
"""Bytes of a record from which on batches are smaller."""


@dataclass(frozen=True)
class Scene:
    """What the cases have in common.

    Args:
        datasets: What is read.
        kernels: The implementations of streamrec's kernel that run here, the faster one first.
        tensorflow_python: An interpreter that has TensorFlow, or ``None``.
        seconds: How long a reader decodes, at least.
        epochs: How often a stream reads everything; what is small more often.
        tfrecord: Whether the ``tfrecord`` package is there.
    """

    datasets: tuple[Dataset, ...]
    kernels: tuple[str, ...]
    tensorflow_python: str | None
    seconds: float
    epochs: int
    tfrecord: bool


def title(level: str, kind: str, name: str) -> str:
    """Of a case."""
    return f"{level}, {kind}: {name}"


def by_size(name: str, batch_size: int) -> str:
    """What a reader is called among those of all batch sizes."""
    return f"{name}, batches of {batch_size}"


def all_cases(scene: Scene) -> list[Case]:
    """In the order of the tables. Raw images are framed as the others: they are only parsed."""
    framed = [dataset for dataset in scene.datasets if dataset.kind != "raw-images"]
    return [
        *(case for dataset in framed for case in _frames(scene, dataset)),
        *(case for dataset in scene.datasets for case in _parsing(scene, dataset)),
        *(case for dataset in scene.datasets for case in _whole(scene, dataset)),
        *(
            case
            for dataset in scene.datasets
            if dataset.kind in BY_SIZE_KINDS
            for batch_size in BATCH_SIZES
            for case in _whole_by_size(scene, dataset, batch_size)
        ),
    ]


@dataclass(frozen=True)
class _Group:
    """Cases on the same data, held against the same others.

    Args:
        level: What they do.
        scene: What all cases have in common.
        dataset: What they read.
        check: What shows that they have read it.
        against: What a comparison is called, and the name of its case.
    """

    level: str
    scene: Scene
    dataset: Dataset
    check: str
    against: Mapping[str, str]

    def case(
        self, name: str, module: str, *, shards: int = 1, kernel: str | None = None, **order: Any
    ) -> Case:
        """One that reads the first shards."""
        paths = [str(path) for path in self.dataset.paths[:shards]]
        return Case(
            f"{self.level}, {self.dataset.kind}",
            name,
            f"bench.readers.{module}",
            {**self._common(), "paths": paths, **order},
            environment={"STREAMREC_KERNEL": kernel} if kernel else {},
            comparisons=tuple(self._comparisons()),
        )

    def of_tensorflow(self, name: str, module: str, *, shards: int = 1, **order: Any) -> list[Case]:
        """One, where there is TensorFlow."""
        python = self.scene.tensorflow_python
        if python is None:
            return []
        return [replace(self.case(name, module, shards=shards, **order), python=python)]

    def of_tfrecord(self, module: str) -> list[Case]:
        """One, where there is the ``tfrecord`` package."""
        if not self.scene.tfrecord:
            return []
        return [self.case("tfrecord package, no CRC", module, way="tfrecord")]

    def _common(self) -> dict[str, Any]:
        dataset = self.dataset
        large = dataset.nbytes > LARGE * dataset.records
        return {
            "kind": dataset.kind,
            "features": dataset.features,
            "records": dataset.records // dataset.shards,
            "batch_size": 64 if large else 512,
            "seconds": self.scene.seconds,
            "deterministic": False,
            "read_bytes": READ_BYTES,
            "check": self.check,
        }

    def _comparisons(self) -> Iterator[Comparison]:
        for label, other in self.against.items():
            yield Comparison(label, (title(self.level, self.dataset.kind, other),))


def _frames(scene: Scene, dataset: Dataset) -> list[Case]:
    against = {"of the CRC alone": CRC_ALONE, **_of(PIPELINES)}
    group = _Group(FRAMES, scene, dataset, "bytes", against)
    best = scene.kernels[0]
    return [
        group.case(CRC_ALONE, "frames", way="crc alone"),
        *(
            group.case(f"streamrec, {kernel}", "frames", way="scan", kernel=kernel)
            for kernel in scene.kernels
        ),
        group.case(
            f"streamrec, {best}, file read anew", "frames", way="read and scan", kernel=best
        ),
        group.case("crc32c package, Python loop", "frames", way="python loop"),
        *group.of_tfrecord("frames"),
        *group.of_tensorflow(ONE_BY_ONE, "tf_decoding", way="one by one"),
        *_pipelines(group, "tf_decoding", way="batched", check="records"),
    ]


def _of(names: Mapping[bool, str]) -> dict[str, str]:
    return {f"of {name}": name for name in names.values()}


def _pipelines(
    group: _Group, module: str, names: Mapping[bool, str] = PIPELINES, **order: Any
) -> list[Case]:
    """tf.data over all files."""
    shards = group.dataset.shards
    return [
        case
        for within, name in names.items()
        for case in group.of_tensorflow(name, module, shards=shards, within_files=within, **order)
    ]


def _parsing(scene: Scene, dataset: Dataset) -> list[Case]:
    group = _Group(PARSING, scene, dataset, "labels", _of(PARSED))
    ways = {"streamrec, {}": "prepared", "streamrec.parse_example, {}": "parse_example"}
    return [
        *(
            group.case(name.format(kernel), "columns", way=way, kernel=kernel)
            for kernel in scene.kernels
            for name, way in ways.items()
        ),
        group.case("protobuf upb to NumPy", "columns", way="upb"),
        *group.of_tfrecord("columns"),
        *(
            case
            for graph, name in PARSED.items()
            for case in group.of_tensorflow(name, "tf_decoding", way="parse_example", graph=graph)
        ),
    ]


def _whole(scene: Scene, dataset: Dataset) -> list[Case]:
    group = _Group(WHOLE, scene, dataset, "labels", _of(PIPELINES))
    streams = [_stream(group, f"sr.open, {way}", way) for way in STREAMS]
    return streams + _pipelines(group, "tf_data", epochs=_epochs(scene, dataset))


def _whole_by_size(scene: Scene, dataset: Dataset, batch_size: int) -> list[Case]:
    """One way to iterate, and both of tf.data."""
    names = {within: by_size(name, batch_size) for within, name in PIPELINES.items()}
    against = dict(zip(_of(PIPELINES), names.values(), strict=True))
    group = _Group(BY_SIZE, scene, dataset, "labels", against)
    own = by_size(f"sr.open, {BY_SIZE_WAY}", batch_size)
    order = {"epochs": _epochs(scene, dataset), "batch_size": batch_size}
    return [
        _stream(group, own, BY_SIZE_WAY, batch_size=batch_size),
        *_pipelines(group, "tf_data", names, **order),
    ]


def _epochs(scene: Scene, dataset: Dataset) -> int:
    return scene.epochs * MORE_EPOCHS.get(dataset.kind, 1)


def _stream(group: _Group, name: str, way: str, **order: Any) -> Case:
    """``sr.open`` over all files."""
    dataset = group.dataset
    source = {"source": dataset.pattern, "storage_options": None}
    idle = {"iterations": 0, "beside": None}
    epochs = _epochs(group.scene, dataset)
    every = {**source, **idle, **STREAMS[way], "epochs": epochs, **order}
    return group.case(name, "stream", shards=dataset.shards, **every)


def memory_cases(scene: Scene) -> list[Case]:
    """One process that reads everything ten times: small records, and large ones."""
    return [
        _Group(MEMORY, scene, dataset, "labels", {}).case(
            "async for",
            "memory",
            shards=dataset.shards,
            source=dataset.pattern,
            records=dataset.records,
            epochs=MEMORY_EPOCHS,
        )
        for dataset in scene.datasets
        if dataset.kind in ("recsys", "images")
    ]
