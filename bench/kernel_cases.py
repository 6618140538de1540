"""The cases of :mod:`bench.kernel`: readers that find, check and parse records of each kind."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.cases import RATE, Case, Comparison, Failure
from bench.datasets import Dataset

FRAMES = "frames and CRC"
PARSING = "Examples to columns"
WHOLE = "from files to batches"
MEMORY = "memory"
CRC_ALONE = "crc32c package, no frames"
PARSED = {False: "tf.io.parse_example", True: "the same in a tf.function"}
PIPELINES = {False: "tf.data", True: "tf.data, batched within files"}
"""Batches of the records of all files, as is usual, and of one file each, which is faster."""
STREAMS: dict[str, dict[str, Any]] = {
    "async for": {"loop": "uvloop"},
    'for, engine="thread"': {"loop": None, "engine": "thread"},
    "for": {"loop": None},
}
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
    return f"{level}, {kind}: {name}"


def all_cases(setup: Setup) -> list[Case]:
    """Return the cases in the order of the tables.

    Raw images are only parsed: all else of them is as of images.
    """
    framed = [dataset for dataset in setup.datasets if dataset.kind != "raw-images"]
    return [
        *(case for dataset in framed for case in _frames(setup, dataset)),
        *(case for dataset in setup.datasets for case in _parsing(setup, dataset)),
        *(case for dataset in framed for case in _whole(setup, dataset)),
    ]


@dataclass(frozen=True)
class _Group:
    """Cases that read the same data, and are compared with the same others.

    Args:
        level: Work of the readers.
        setup: Settings that all cases share.
        check: Figure that shows that they have read it.
        against: Name of the compared case for each label.
    """

    level: str
    setup: Setup
    dataset: Dataset
    check: str
    against: Mapping[str, str]

    def case(
        self, name: str, program: str, *, shards: int = 1, kernel: str | None = None, **more: Any
    ) -> Case:
        dataset = self.dataset
        large = dataset.nbytes > LARGE * dataset.records
        arguments = {
            "kind": dataset.kind,
            "features": dataset.features,
            "records": dataset.records // dataset.shards,
            "batch_size": 64 if large else 512,
            "seconds": self.setup.seconds,
            "deterministic": False,
            "read_bytes": READ_BYTES,
            "check": self.check,
            "paths": [str(path) for path in dataset.paths[:shards]],
        }
        python = self.setup.tensorflow_python if program.startswith("readers.tf") else None
        return Case(
            f"{self.level}, {dataset.kind}",
            name,
            program,
            {**arguments, **more},
            python or sys.executable,
            environment={"STREAMREC_KERNEL": kernel} if kernel else {},
            comparisons=tuple(
                Comparison(label, (title(self.level, dataset.kind, other),))
                for label, other in self.against.items()
            ),
        )

    def of_tensorflow(self, name: str, program: str, **more: Any) -> list[Case]:
        """Return a case where there is TensorFlow, else none."""
        return [self.case(name, program, **more)] if self.setup.tensorflow_python else []

    def of_tfrecord(self, program: str) -> list[Case]:
        """Return a case where the ``tfrecord`` package is installed, else none."""
        name = "tfrecord package, no CRC"
        return [self.case(name, program, way="tfrecord")] if self.setup.tfrecord else []

    def pipelines(
        self, program: str, ways: Sequence[bool] = tuple(PIPELINES), **more: Any
    ) -> list[Case]:
        """Return the cases of tf.data over all files, batched within files or not."""
        shards = self.dataset.shards
        return [
            case
            for within in ways
            for case in self.of_tensorflow(
                PIPELINES[within], program, shards=shards, within_files=within, **more
            )
        ]

    def stream(self, name: str, way: str, **more: Any) -> Case:
        """Return a case of ``sr.open`` over all files."""
        dataset = self.dataset
        source = {"source": dataset.pattern, "storage_options": None}
        idle = {"iterations": 0, "beside": None, "epochs": self.epochs}
        return self.case(
            name,
            "readers.streams stream",
            shards=dataset.shards,
            **{**source, **idle, **STREAMS[way], **more},
        )

    @property
    def epochs(self) -> int:
        """Return the number of epochs that a stream reads."""
        return self.setup.epochs * MORE_EPOCHS.get(self.dataset.kind, 1)


def _frames(setup: Setup, dataset: Dataset) -> list[Case]:
    against = {"of the CRC alone": CRC_ALONE, **_of({True: PIPELINES[True]})}
    group, program = _Group(FRAMES, setup, dataset, "bytes", against), "readers.decoding frames"
    return [
        group.case(CRC_ALONE, program, way="crc alone"),
        *(
            group.case(f"streamrec, {kernel}", program, way="scan", kernel=kernel)
            for kernel in setup.kernels
        ),
        group.case("crc32c package, Python loop", program, way="python loop"),
        *group.of_tfrecord(program),
        *group.pipelines("readers.tf_data decoding", (True,), way="batched", check="records"),
    ]


def _of(names: Mapping[bool, str]) -> dict[str, str]:
    return {f"of {name}": name for name in names.values()}


def _parsing(setup: Setup, dataset: Dataset) -> list[Case]:
    group = _Group(PARSING, setup, dataset, "labels", _of(PARSED))
    program, theirs = "readers.decoding columns", "readers.tf_data decoding"
    ways = {"streamrec, {}": "prepared", "streamrec.parse_example, {}": "parse_example"}
    return [
        *(
            group.case(name.format(kernel), program, way=way, kernel=kernel)
            for kernel in setup.kernels
            for name, way in ways.items()
        ),
        group.case("protobuf upb to NumPy", program, way="upb"),
        *group.of_tfrecord(program),
        *(
            case
            for graph, name in PARSED.items()
            for case in group.of_tensorflow(name, theirs, way="parse_example", graph=graph)
        ),
    ]


def _whole(setup: Setup, dataset: Dataset) -> list[Case]:
    group = _Group(WHOLE, setup, dataset, "labels", _of(PIPELINES))
    streams = [group.stream(f"sr.open, {way}", way) for way in STREAMS]
    return streams + group.pipelines("readers.tf_data dataset", epochs=group.epochs)


def memory_cases(setup: Setup) -> list[Case]:
    """Return cases that read a dataset ten times in a process: small records, and large ones."""
    return [
        _Group(MEMORY, setup, dataset, "labels", {}).case(
            "async for",
            "readers.streams memory",
            shards=dataset.shards,
            source=dataset.pattern,
            records=dataset.records,
            epochs=MEMORY_EPOCHS,
        )
        for dataset in setup.datasets
        if dataset.kind in ("recsys", "images")
    ]


# -- what they report ------------------------------------------------------------------------------


def rates(case: Case, report: Mapping[str, Any], dataset: Dataset) -> dict[str, float]:
    """Return a reader's report as figures.

    Args:
        case: Case whose arguments say what is checked: ``labels``, ``bytes``, or ``records`` alone.
        report: Report that :class:`bench.stopwatch.Stopwatch` prints.
        dataset: Dataset that the reader was given.

    Raises:
        Failure: It has read something else.
    """
    records = report["records"]
    _check(case.arguments, report, dataset)
    seconds, cpu = report["seconds"], sum(report["cpu_seconds"].values())
    nbytes = report["nbytes"] or records * dataset.nbytes / dataset.records
    found = {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "records_per_second": records / seconds,
        RATE: nbytes / 1e6 / seconds,
        "records_per_cpu_second": records / cpu,
        "megabytes_per_cpu_second": nbytes / 1e6 / cpu,
    }
    for name, peak in report["peak_megabytes"].items():
        found[f"{name}_peak_megabytes"] = peak
    if "epochs" in case.arguments:
        found |= _of_stream(report)
    for number, megabytes in enumerate(report.get("resident_megabytes", ()), 1):
        found[f"resident_megabytes_{number:02}"] = megabytes
    return found


def _of_stream(report: Mapping[str, Any]) -> dict[str, float]:
    first, rest = report["first_batch_seconds"], 1 - report["first_batch_share"]
    return {
        "first_batch_seconds": first,
        "records_per_second_after_first_batch": (
            report["records"] * rest / (report["seconds"] - first)
        ),
    }


def _check(arguments: Mapping[str, Any], report: Mapping[str, Any], dataset: Dataset) -> None:
    records = report["records"]
    cycle = dataset.records // dataset.shards * len(arguments["paths"])
    if arguments["check"] == "labels":
        _expect("labels", report["label_sum"], dataset.labels_of(records, len(arguments["paths"])))
    else:
        _expect("records", records % cycle, 0)
    if arguments["check"] == "bytes":
        sizes = [path.stat().st_size for path in dataset.paths[: len(arguments["paths"])]]
        _expect("bytes", report["nbytes"], records // cycle * sum(sizes))
    if "epochs" in arguments:
        _expect("records", records, dataset.records * arguments["epochs"])


def _expect(what: str, came: int, there: int) -> None:
    if came != there:
        raise Failure(f"read {came:,} {what}, where there is {there:,}")
