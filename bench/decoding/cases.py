"""The cases: readers that find, check and parse records, on each kind of data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bench.measure import Case, Comparison

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bench.datasets import Dataset

FRAMES = "frames and CRC"
PARSING = "Examples to columns"
WHOLE = "from files to batches"
BY_SIZE = "from files to batches, by batch size"
MEMORY = "memory"
CRC_ALONE = "crc32c package, no frames"
PARSED = {False: "tf.io.parse_example", True: "the same in a tf.function"}
ONE_BY_ONE = "tf.data, one by one to NumPy"
PIPELINES = {False: "tf.data", True: "tf.data, batched within files"}
"""Batches of the records of all files, as is usual, and of one file each, which is faster."""
STREAMS: dict[str, dict[str, Any]] = {
    "async for": {"loop": "uvloop"},
    'for, engine="thread"': {"loop": None, "engine": "thread"},
    "for": {"loop": None},
}
BATCH_SIZES = (128, 512, 2048, 8192)
BY_SIZE_WAY = "async for"
BY_SIZE_KINDS = ("recsys", "tokens")
"""Kinds of small records: no trainer takes thousands of large ones at a time."""
MEMORY_EPOCHS = 10
READ_BYTES = 1 << 20
"""Buffer of tf.data's readers: faster on two cores than 8 MiB, and than the default."""
MORE_EPOCHS = {"recsys": 4, "tokens": 2}
"""Times as many epochs of small datasets, so that a stream's start counts for as much."""
LARGE = 20_000
"""Mean size of records in bytes above which batches are smaller."""


@dataclass(frozen=True)
class Setup:
    """The settings that the cases share.

    Args:
        datasets: Datasets that are read.
        kernels: Implementations of streamrec's kernel that run here, the faster one first.
        tensorflow_python: Interpreter that has TensorFlow, or ``None``.
        seconds: Seconds that a reader decodes, at least.
        epochs: Epochs that a stream reads; of small datasets more.
        tfrecord: True where the ``tfrecord`` package is installed.
    """

    datasets: tuple[Dataset, ...]
    kernels: tuple[str, ...]
    tensorflow_python: str | None
    seconds: float
    epochs: int
    tfrecord: bool


def title(level: str, kind: str, name: str) -> str:
    """Return the title of a case."""
    return f"{level}, {kind}: {name}"


def by_size(name: str, batch_size: int) -> str:
    """Return the name of a reader among those of all batch sizes."""
    return f"{name}, batches of {batch_size}"


def all_cases(setup: Setup) -> list[Case]:
    """Return the cases in the order of the tables.

    Raw images are only parsed: their frames are those of images.
    """
    framed = [dataset for dataset in setup.datasets if dataset.kind != "raw-images"]
    return [
        *(case for dataset in framed for case in _frames(setup, dataset)),
        *(case for dataset in setup.datasets for case in _parsing(setup, dataset)),
        *(case for dataset in setup.datasets for case in _whole(setup, dataset)),
        *(
            case
            for dataset in setup.datasets
            if dataset.kind in BY_SIZE_KINDS
            for batch_size in BATCH_SIZES
            for case in _whole_by_size(setup, dataset, batch_size)
        ),
    ]


@dataclass(frozen=True)
class _Group:
    """Cases that read the same data, and are compared with the same others.

    Args:
        level: Work of the readers.
        setup: Settings that all cases share.
        dataset: Dataset that they read.
        check: Quantity that shows that they have read it.
        against: Name of the compared case for each label.
    """

    level: str
    setup: Setup
    dataset: Dataset
    check: str
    against: Mapping[str, str]

    def case(
        self,
        name: str,
        module: str,
        *,
        shards: int = 1,
        kernel: str | None = None,
        **arguments: Any,
    ) -> Case:
        """Return a case that reads the first shards."""
        paths = [str(path) for path in self.dataset.paths[:shards]]
        return Case(
            f"{self.level}, {self.dataset.kind}",
            name,
            f"bench.readers.{module}",
            {**self._common(), "paths": paths, **arguments},
            environment={"STREAMREC_KERNEL": kernel} if kernel else {},
            comparisons=tuple(self._comparisons()),
        )

    def of_tensorflow(
        self, name: str, module: str, *, shards: int = 1, **arguments: Any
    ) -> list[Case]:
        """Return a case where there is TensorFlow, else none."""
        python = self.setup.tensorflow_python
        if python is None:
            return []
        return [replace(self.case(name, module, shards=shards, **arguments), python=python)]

    def of_tfrecord(self, module: str) -> list[Case]:
        """Return a case where the ``tfrecord`` package is installed, else none."""
        if not self.setup.tfrecord:
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
            "seconds": self.setup.seconds,
            "deterministic": False,
            "read_bytes": READ_BYTES,
            "check": self.check,
        }

    def _comparisons(self) -> Iterator[Comparison]:
        for label, other in self.against.items():
            yield Comparison(label, (title(self.level, self.dataset.kind, other),))


def _frames(setup: Setup, dataset: Dataset) -> list[Case]:
    against = {"of the CRC alone": CRC_ALONE, **_of(PIPELINES)}
    group = _Group(FRAMES, setup, dataset, "bytes", against)
    best = setup.kernels[0]
    return [
        group.case(CRC_ALONE, "frames", way="crc alone"),
        *(
            group.case(f"streamrec, {kernel}", "frames", way="scan", kernel=kernel)
            for kernel in setup.kernels
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
    group: _Group, module: str, names: Mapping[bool, str] = PIPELINES, **arguments: Any
) -> list[Case]:
    """Return the cases of tf.data over all files."""
    shards = group.dataset.shards
    return [
        case
        for within, name in names.items()
        for case in group.of_tensorflow(
            name, module, shards=shards, within_files=within, **arguments
        )
    ]


def _parsing(setup: Setup, dataset: Dataset) -> list[Case]:
    group = _Group(PARSING, setup, dataset, "labels", _of(PARSED))
    ways = {"streamrec, {}": "prepared", "streamrec.parse_example, {}": "parse_example"}
    return [
        *(
            group.case(name.format(kernel), "columns", way=way, kernel=kernel)
            for kernel in setup.kernels
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


def _whole(setup: Setup, dataset: Dataset) -> list[Case]:
    group = _Group(WHOLE, setup, dataset, "labels", _of(PIPELINES))
    streams = [_stream(group, f"sr.open, {way}", way) for way in STREAMS]
    return streams + _pipelines(group, "tf_data", epochs=_epochs(setup, dataset))


def _whole_by_size(setup: Setup, dataset: Dataset, batch_size: int) -> list[Case]:
    """Return one way to iterate over a stream, and both of tf.data."""
    names = {within: by_size(name, batch_size) for within, name in PIPELINES.items()}
    against = dict(zip(_of(PIPELINES), names.values(), strict=True))
    group = _Group(BY_SIZE, setup, dataset, "labels", against)
    own = by_size(f"sr.open, {BY_SIZE_WAY}", batch_size)
    arguments = {"epochs": _epochs(setup, dataset), "batch_size": batch_size}
    return [
        _stream(group, own, BY_SIZE_WAY, batch_size=batch_size),
        *_pipelines(group, "tf_data", names, **arguments),
    ]


def _epochs(setup: Setup, dataset: Dataset) -> int:
    return setup.epochs * MORE_EPOCHS.get(dataset.kind, 1)


def _stream(group: _Group, name: str, way: str, **arguments: Any) -> Case:
    """Return a case of ``sr.open`` over all files."""
    dataset = group.dataset
    source = {"source": dataset.pattern, "storage_options": None}
    idle = {"iterations": 0, "beside": None}
    epochs = _epochs(group.setup, dataset)
    every = {**source, **idle, **STREAMS[way], "epochs": epochs, **arguments}
    return group.case(name, "stream", shards=dataset.shards, **every)


def memory_cases(setup: Setup) -> list[Case]:
    """Return cases that read a dataset ten times in a process: small records, and large ones."""
    return [
        _Group(MEMORY, setup, dataset, "labels", {}).case(
            "async for",
            "memory",
            shards=dataset.shards,
            source=dataset.pattern,
            records=dataset.records,
            epochs=MEMORY_EPOCHS,
        )
        for dataset in setup.datasets
        if dataset.kind in ("recsys", "images")
    ]
