"""Runs MLPerf Storage's benchmark with DLIO's own readers and with streamrec's, side by side.

::

    python -m bench.dlio --dlio-python PATH --output bench/results

``PATH`` is an interpreter that has ``bench/dlio/requirements.txt``. DLIO writes the data, emulates
the accelerator and measures; streamrec's reader is a plugin of it. Files are read from the page
cache, and as objects from a store on loopback.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from bench.console import case_options, print_failures, run, selected
from bench.dlio.tables import as_markdown
from bench.dlio.workloads import BUCKET, READERS, WORKLOADS, Reader, Workload, overrides
from bench.machine import versions_in
from bench.measure import Case, Failure
from bench.results import facts, rows, write
from bench.services import STORE_KEYS, Served, store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# TensorFlow's filesystem of S3 went to tensorflow-io: by it DLIO lists and reads objects.
PACKAGES = ("dlio-benchmark", "tensorflow-cpu", "tensorflow-io", "nvidia-dali-cuda120", "torch")


@click.command()
@case_options(3)
@click.option("--latency", default=0.03, show_default=True, help="Seconds to the first byte.")
@click.option(
    "--bandwidth", default=60e6, show_default=True, help="Bytes a second of a connection."
)
@click.option(
    "--dlio-python",
    default=sys.executable,
    help="Python interpreter that has DLIO; this one by default.",
)
def main(
    *,
    output: Path | None,
    data: Path,
    repeat: int,
    only: tuple[str, ...],
    latency: float,
    bandwidth: float,
    dlio_python: str,
) -> None:
    """Measure, print tables, and write JSON and Markdown."""
    versions = versions_in(dlio_python, PACKAGES)
    if versions["dlio-benchmark"] is None:
        raise click.UsageError(
            f"{dlio_python} has no DLIO. Install bench/dlio/requirements.txt into an environment"
            " of its own, and name its interpreter with --dlio-python."
        )
    root = data.absolute() / "dlio"
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
        results = run([one for one in cases if selected(one, only)], judge, repeat)
    skipped = [reader.name for reader in READERS if versions[reader.needs] is None]
    report = as_markdown(results)
    click.echo(report)
    print_failures(results)
    if output is not None:
        content = facts(
            "dlio",
            peers=versions,
            settings={"latency": latency, "bandwidth": bandwidth, "rounds": repeat},
            workloads=[workload.facts() for workload in WORKLOADS],
            skipped=skipped,
            rows=rows(results),
        )
        write(output, "dlio", content, report)
    sys.exit(any(result.failures for result in results))


def case(
    place: str,
    served: Served | None,
    workload: Workload,
    reader: Reader,
    python: str,
    root: Path,
) -> Case:
    """Return the case of a reader of a workload's data, from local files or from the store."""
    folder = workload.folder if served else root / BUCKET / workload.folder
    places = {"storage.storage_type": "s3", "storage.storage_root": BUCKET} if served else {}
    plain = overrides(workload, {"dataset.data_folder": folder, **places, **reader.settings})
    return Case(
        f"{workload.name}, {place}",
        reader.name,
        "bench.dlio.launch",
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


if __name__ == "__main__":
    main()
