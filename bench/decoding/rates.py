"""Makes quantities of a reader's report, and checks that it has read exactly its dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.measure import Case, Failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.datasets import Dataset


def rates(case: Case, report: Mapping[str, Any], dataset: Dataset) -> dict[str, float]:
    """Return a reader's report as quantities.

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
        "megabytes_per_second": nbytes / 1e6 / seconds,
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
