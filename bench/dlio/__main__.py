"""Runs MLPerf Storage's benchmark with DLIO's own readers and with streamrec's, side by side.

``PATH`` is an interpreter that has ``bench/dlio/requirements.txt``. DLIO writes the data, emulates
the accelerator and measures; streamrec's reader is a plugin of it. Files are read from the page
cache, and as objects from a store on loopback.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bench.cases import Case, Failure, Result
from bench.dlio.workloads import BUCKET, READERS, WORKLOADS, Reader, Workload, overrides
from bench.harness import Column, Report, Run, benchmark, spread, table_of
from bench.machine import versions_in
from bench.services import STORE_KEYS, Served, store

# TensorFlow's filesystem of S3 went to tensorflow-io: by it DLIO lists and reads objects.
PACKAGES = ("dlio-benchmark", "tensorflow-cpu", "tensorflow-io", "nvidia-dali-cuda120", "torch")
COLUMNS = (
    Column("reader", lambda result: result.case.name, str),
    Column("AU, %", "utilisation"),
    Column("least to most", spread("utilisation", " to "), str),
    Column("samples/s", "samples_per_second"),
    Column("least to most", spread("samples_per_second", " to "), str),
    Column("first batch, s", "first_batch_seconds"),
    Column("CPU, s", "cpu_seconds"),
    Column("requests", "store_requests"),
    Column("MB from the store", "store_megabytes"),
)


@benchmark("dlio", repeat=3, only=True, data=True)
@click.option("--latency", default=0.03, show_default=True, help="Seconds to the first byte.")
@click.option(
    "--bandwidth", default=60e6, show_default=True, help="Bytes a second of a connection."
)
@click.option(
    "--dlio-python",
    default=sys.executable,
    help="Python interpreter that has DLIO; this one by default.",
)
def main(run: Run, *, latency: float, bandwidth: float, dlio_python: str) -> Report:
    versions = versions_in(dlio_python, PACKAGES)
    if versions["dlio-benchmark"] is None:
        raise click.UsageError(
            f"{dlio_python} has no DLIO. Install bench/dlio/requirements.txt into an environment"
            " of its own, and name its interpreter with --dlio-python."
        )
    root = run.data / "dlio"
    for workload in WORKLOADS:
        workload.make(dlio_python, root)
    with store(root, latency=latency, bandwidth=bandwidth) as served:
        places = {"local files": None, "object store": served}
        cases = [
            case(place, at, workload, reader, dlio_python, root)
            for workload in WORKLOADS
            for place, at in places.items()
            for reader in READERS
            if versions[reader.needs] is not None and (at is None or reader.from_store)
        ]
        run.measure(cases, judge)
    run.skipped += [one.name for one in READERS if versions[one.needs] is None]
    facts = {
        "peers": versions,
        "settings": {"latency": latency, "bandwidth": bandwidth, "rounds": run.repeat},
        "workloads": [workload.facts() for workload in WORKLOADS],
    }
    return Report(as_markdown(run.results), facts)


def case(
    place: str, served: Served | None, workload: Workload, reader: Reader, python: str, root: Path
) -> Case:
    """Return the case of a reader of a workload's data, from local files or from the store."""
    folder = workload.folder if served else root / BUCKET / workload.folder
    places = {"storage.storage_type": "s3", "storage.storage_root": BUCKET} if served else {}
    plain = overrides(workload, {"dataset.data_folder": folder, **places, **reader.settings})
    return Case(
        f"{workload.name}, {place}",
        reader.name,
        "dlio.launch run",
        {
            "imports": ["tensorflow_io"] if served else [],
            "overrides": plain,
            "trains": True,
            "steps": workload.steps,
        },
        python,
        dict(environment(served)) if served else {},
        counters=served,
    )


def environment(served: Served) -> Iterator[tuple[str, str]]:
    """Yield the variables by which botocore and tensorflow-io find the store."""
    yield "AWS_ACCESS_KEY_ID", STORE_KEYS["key"]
    yield "AWS_SECRET_ACCESS_KEY", STORE_KEYS["secret"]
    yield "AWS_REGION", "us-east-1"
    yield "AWS_ENDPOINT_URL", served.endpoint
    yield "S3_ENDPOINT", served.endpoint
    yield "S3_USE_HTTPS", "0"
    yield "S3_VERIFY_SSL", "0"


def judge(case: Case, report: Mapping[str, Any]) -> dict[str, float]:
    """Return the quantities of a run, which must have made every step."""
    [steps], due = report["steps"], case.arguments["steps"]
    if steps != due:
        raise Failure(f"made {steps} steps, where there are {due}")
    found = {
        "utilisation": report["utilisation"][0],
        "samples_per_second": report["samples_per_second"][0],
        "first_batch_seconds": report["first_batch_seconds"][0],
        "cpu_seconds": report["cpu_seconds"],
    }
    if "store" in report:
        found["store_requests"] = report["store"]["requests"]
        found["store_megabytes"] = report["store"]["bytes_sent"] / 1e6
    return found


def as_markdown(results: Sequence[Result]) -> str:
    """Return a table for each workload and place."""
    groups = dict.fromkeys(result.case.group for result in results)
    return "\n\n".join(
        f"### {_title(group)}\n\n"
        + table_of(COLUMNS, [one for one in results if one.case.group == group])
        for group in groups
    )


def _title(group: str) -> str:
    name, _, place = group.partition(", ")
    workload = next(one for one in WORKLOADS if one.name == name)
    return (
        f"{name}, {place}: {workload.steps} steps of {workload.batch_size} x"
        f" {workload.record_bytes / 1e6:.2f} MB, {workload.step_seconds * 1e3:g} ms each;"
        f" {workload.needed:,.0f} samples/s and {workload.passing:g} % are MLPerf's aims"
    )


if __name__ == "__main__":
    main()
