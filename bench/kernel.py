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
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from bench import datasets, machine
from bench.aims import Target, targets_as_markdown
from bench.console import complain, default_data, run, wanted
from bench.decoding.cases import Scene, all_cases, memory_cases
from bench.decoding.picture import draw
from bench.decoding.rates import rates
from bench.decoding.tables import as_markdown
from bench.decoding.targets import targets
from bench.table import write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bench.datasets import Dataset
    from bench.measure import Case, Result

SIZES: dict[str, tuple[Callable[[Path, float], Dataset], float]] = {
    "recsys": (datasets.recsys, 8 * 17.0),
    "tokens": (datasets.tokens, 8 * 34.0),
    "images": (datasets.images, 8 * 134.0),
    "raw-images": (datasets.raw_images, 8 * 134.0),
}
"""Makes each dataset, and its size in 10^6 bytes where ``--size`` is 1."""


@dataclass(frozen=True)
class Settings:
    """What the command line says."""

    size: float
    repeat: int
    seconds: float
    epochs: int
    kinds: tuple[str, ...]
    only: tuple[str, ...]
    tensorflow_python: str


@click.command()
@click.option("--output", type=click.Path(path_type=Path), help="Directory for the results.")
@click.option("--size", default=0.3, show_default=True, help="Of the data: 1 is 2.5 GB.")
@click.option("--repeat", default=3, show_default=True, help="Rounds; each case once in each.")
@click.option("--seconds", default=0.5, show_default=True, help="That a reader decodes, at least.")
@click.option("--epochs", default=4, show_default=True, help="That a stream reads.")
@click.option("--data", type=click.Path(path_type=Path), default=default_data, help="For shards.")
@click.option("--kinds", multiple=True, type=click.Choice(list(SIZES)), help="Of data. [all]")
@click.option("--tensorflow-python", default=sys.executable, help="Has TensorFlow. [this one]")
@click.option("--only", multiple=True, help="Cases whose title holds this. [all]")
@click.option("--date", help="For the results. [now]")
def main(*, output: Path | None, data: Path, date: str | None, **options: Any) -> None:
    """Measure, print tables, and write JSON, Markdown and a picture."""
    settings = Settings(**options)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    tensorflow = machine.tensorflow_version(settings.tensorflow_python)
    scene = prepare(settings, data.absolute(), has_tensorflow=tensorflow is not None)
    results = measured(settings, scene)
    found = targets(results, scene.kernels[0])
    report = f"{as_markdown(results)}\n### aims\n\n{targets_as_markdown(found)}\n"
    console.print(report)
    for line in skipped(settings, scene):
        console.print(line)
    complain(results, console)
    if output is not None:
        facts = describe(settings, scene, found, date)
        facts["machine"]["libraries"]["tensorflow"] = tensorflow
        write(output, results, facts, report, console)
    sys.exit(any(result.failures for result in results))


def prepare(settings: Settings, data: Path, *, has_tensorflow: bool) -> Scene:
    """Make the data, and see what there is to compare with."""
    kinds = settings.kinds or tuple(SIZES)
    made = [make(data, size * settings.size) for make, size in (SIZES[kind] for kind in kinds)]
    for path in (path for dataset in made for path in dataset.paths):
        path.read_bytes()  # into the page cache
    return Scene(
        datasets=tuple(made),
        kernels=tuple(machine.kernels()),
        tensorflow_python=settings.tensorflow_python if has_tensorflow else None,
        seconds=settings.seconds,
        epochs=settings.epochs,
        tfrecord=find_spec("tfrecord") is not None,
    )


def measured(settings: Settings, scene: Scene) -> list[Result]:
    """All rounds, and the memory once."""
    by_kind = {dataset.kind: dataset for dataset in scene.datasets}

    def judge(case: Case, report: Mapping[str, Any]) -> dict[str, float]:
        return rates(case, report, by_kind[case.order["kind"]])

    chosen = partial(filter, lambda case: wanted(case, settings.only))
    return [
        *run(list(chosen(all_cases(scene))), judge, settings.repeat),
        *run(list(chosen(memory_cases(scene))), judge, 1),
    ]


def skipped(settings: Settings, scene: Scene) -> list[str]:
    """What could not be measured, and what to do about it."""
    lines = []
    if scene.tensorflow_python is None:
        python = settings.tensorflow_python
        lines.append(f"Skipped: {python} has no TensorFlow; name one with --tensorflow-python.")
    if not scene.tfrecord:
        lines.append("Skipped: no tfrecord package; pip install 'streamrec[bench]'.")
    if "native" not in scene.kernels:
        lines.append("Skipped: the native kernel cannot be loaded; build it with a C compiler.")
    return lines


def describe(
    settings: Settings, scene: Scene, found: Sequence[Target], date: str | None
) -> dict[str, Any]:
    """What else belongs to the results."""
    unsaid = ("tensorflow_python", "kinds", "only")
    return {
        "benchmark": "kernel",
        "date": date or datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "kernels": scene.kernels,
        "datasets": {dataset.kind: dataset.facts() for dataset in scene.datasets},
        "settings": {key: one for key, one in asdict(settings).items() if key not in unsaid},
        "aims": [target.facts() for target in found],
    }


def write(
    output: Path, results: Sequence[Result], facts: Mapping[str, Any], report: str, console: Console
) -> None:
    """JSON, the tables, and the picture where matplotlib is installed."""
    write_json(output / "kernel.json", results, facts)
    (output / "kernel.md").write_text(report)
    on = facts["machine"]
    title = f"Records/s on {on['cpu']}, {on['cores']} cores, {on['python']}, medians"
    try:
        draw(results, list(facts["datasets"]), title, output / "kernel.svg")
    except ImportError:
        console.print("No picture: matplotlib is missing; pip install 'streamrec[bench]'.")


if __name__ == "__main__":
    main()
