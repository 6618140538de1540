"""The kernel side by side: frames and CRC, Examples to columns, and from files to batches.

::

    python -m bench.kernel --tensorflow-python PATH --output bench/results

Decoding alone, in each implementation of the kernel, against the ``crc32c`` package, tf.data,
``tf.io.parse_example``, protobuf's messages in Python, and the ``tfrecord`` package; then streams
of local files against tf.data; then the memory of a process over ten epochs. It makes its data
itself. bench/results/README.md says how each number is made.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from bench import datasets, machine
from bench.aims import targets_as_markdown
from bench.console import case_options, print_failures, run, selected
from bench.decoding.cases import Setup, all_cases, memory_cases
from bench.decoding.chart import draw
from bench.decoding.rates import rates
from bench.decoding.tables import as_markdown
from bench.decoding.targets import targets
from bench.progress import say
from bench.results import facts, rows, write

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from bench.aims import Target
    from bench.datasets import Dataset
    from bench.measure import Case, Result

SIZES: dict[str, tuple[Callable[[Path, float], Dataset], float]] = {
    "recsys": (datasets.recsys, 8 * 17.0),
    "tokens": (datasets.tokens, 8 * 34.0),
    "images": (datasets.images, 8 * 134.0),
    "raw-images": (datasets.raw_images, 8 * 134.0),
}
"""Function that makes each dataset, and its size in 10^6 bytes where ``--size`` is 1."""


@dataclass(frozen=True)
class Settings:
    """The options of the command line."""

    size: float
    repeat: int
    seconds: float
    epochs: int
    kinds: tuple[str, ...]
    only: tuple[str, ...]
    tensorflow_python: str


@click.command()
@case_options(3)
@click.option("--size", default=0.3, show_default=True, help="Size of the data; 1 is 2.5 GB.")
@click.option(
    "--seconds", default=0.5, show_default=True, help="Seconds that a reader decodes, at least."
)
@click.option("--epochs", default=4, show_default=True, help="Epochs that a stream reads.")
@click.option(
    "--kinds", multiple=True, type=click.Choice(list(SIZES)), help="Kind of data; all by default."
)
@click.option(
    "--tensorflow-python",
    default=sys.executable,
    help="Python interpreter that has TensorFlow; this one by default.",
)
def main(*, output: Path | None, data: Path, **options: Any) -> None:
    """Measure, print tables, and write JSON, Markdown and a chart."""
    settings = Settings(**options)
    tensorflow = machine.tensorflow_version(settings.tensorflow_python)
    setup = prepare(settings, data.absolute(), has_tensorflow=tensorflow is not None)
    results = measured(settings, setup)
    found = targets(results, setup.kernels[0])
    report = f"{as_markdown(results)}\n### aims\n\n{targets_as_markdown(found)}"
    click.echo(report)
    for line in skipped(settings, setup):
        click.echo(line)
    print_failures(results)
    if output is not None:
        content = facts("kernel", **describe(settings, setup, found), rows=rows(results))
        content["machine"]["libraries"]["tensorflow"] = tensorflow
        title = f"Records/s on {machine.title()}"
        kinds = list(content["datasets"])
        write(output, "kernel", content, report, partial(draw, results, kinds, title))
    sys.exit(any(result.failures for result in results))


def prepare(settings: Settings, data: Path, *, has_tensorflow: bool) -> Setup:
    """Make the data, and find what there is to compare with."""
    kinds = settings.kinds or tuple(SIZES)
    made = [make(data, size * settings.size) for make, size in (SIZES[kind] for kind in kinds)]
    say("reading the data into the page cache")
    for path in (path for dataset in made for path in dataset.paths):
        path.read_bytes()  # into the page cache
    return Setup(
        datasets=tuple(made),
        kernels=tuple(machine.kernels()),
        tensorflow_python=settings.tensorflow_python if has_tensorflow else None,
        seconds=settings.seconds,
        epochs=settings.epochs,
        tfrecord=find_spec("tfrecord") is not None,
    )


def measured(settings: Settings, setup: Setup) -> list[Result]:
    """Measure the cases in all rounds, and the memory once."""
    by_kind = {dataset.kind: dataset for dataset in setup.datasets}

    def judge(case: Case, report: Mapping[str, Any]) -> dict[str, float]:
        return rates(case, report, by_kind[case.arguments["kind"]])

    chosen = partial(filter, lambda case: selected(case, settings.only))
    return [
        *run(list(chosen(all_cases(setup))), judge, settings.repeat),
        *run(list(chosen(memory_cases(setup))), judge, 1),
    ]


def skipped(settings: Settings, setup: Setup) -> list[str]:
    """Return a line for each thing that cannot be measured here, with a remedy."""
    lines = []
    if setup.tensorflow_python is None:
        python = settings.tensorflow_python
        lines.append(f"Skipped: {python} has no TensorFlow; name one with --tensorflow-python.")
    if not setup.tfrecord:
        lines.append("Skipped: no tfrecord package; pip install 'streamrec[bench]'.")
    if "native" not in setup.kernels:
        lines.append("Skipped: the native kernel cannot be loaded; build it with a C compiler.")
    return lines


def describe(settings: Settings, setup: Setup, found: Sequence[Target]) -> dict[str, Any]:
    """Return what the results depend on, and the aims."""
    left_out = ("tensorflow_python", "kinds", "only")
    return {
        "kernels": setup.kernels,
        "datasets": {dataset.kind: dataset.facts() for dataset in setup.datasets},
        "settings": {key: one for key, one in asdict(settings).items() if key not in left_out},
        "aims": [target.facts() for target in found],
    }


if __name__ == "__main__":
    main()
