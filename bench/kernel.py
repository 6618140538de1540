"""The kernel side by side: frames and CRC, Examples to columns, and from files to batches.

Decoding alone, in each implementation of the kernel, against the ``crc32c`` package, tf.data,
``tf.io.parse_example``, protobuf's messages in Python, and the ``tfrecord`` package; then streams
of local files against tf.data; then the memory of a process over ten epochs. It makes its data
itself. bench/results/README.md says how each number is made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from bench import datasets, machine
from bench.cases import Case, Result, times
from bench.charts import CEILING, OTHER, OWN, draw_bars, new_figure, save_figure
from bench.datasets import Dataset
from bench.harness import Aim, Report, Run, benchmark
from bench.kernel_cases import (
    CRC_ALONE,
    FRAMES,
    MEMORY,
    PARSED,
    PARSING,
    PIPELINES,
    STREAMS,
    WHOLE,
    Setup,
    all_cases,
    memory_cases,
    rates,
    title,
)

SIZES: dict[str, tuple[Callable[[Path, float], Dataset], float]] = {
    "recsys": (datasets.recsys, 8 * 17.0),
    "tokens": (datasets.tokens, 8 * 34.0),
    "images": (datasets.images, 8 * 134.0),
    "raw-images": (datasets.raw_images, 8 * 134.0),
}
"""Function that makes each dataset, and its size in 10^6 bytes where ``--size`` is 1."""
WIDTH, HEIGHT = 4.6, 2.9
"""Size of a panel of the chart in inches."""


@benchmark("kernel", repeat=3, only=True, data=True)
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
def main(
    run: Run,
    *,
    size: float,
    seconds: float,
    epochs: int,
    kinds: tuple[str, ...],
    tensorflow_python: str,
) -> Report:
    tensorflow = machine.module_versions(tensorflow_python, ["tensorflow"])["tensorflow"]
    chosen = [SIZES[kind] for kind in kinds or SIZES]
    made = tuple(make(run.data, megabytes * size) for make, megabytes in chosen)
    datasets.read_into_page_cache(made)
    python = None if tensorflow is None else tensorflow_python
    tfrecord = find_spec("tfrecord") is not None
    setup = Setup(made, tuple(machine.kernels()), python, seconds, epochs, tfrecord)
    by_kind = {dataset.kind: dataset for dataset in made}

    def judge(case: Case, report: Mapping[str, Any]) -> dict[str, float]:
        return rates(case, report, by_kind[case.arguments["kind"]])

    run.measure(all_cases(setup), judge)
    run.measure(memory_cases(setup), judge, 1)
    run.skipped += skipped(setup, tensorflow_python)
    settings = {"size": size, "repeat": run.repeat, "seconds": seconds, "epochs": epochs}
    facts = {
        "kernels": setup.kernels,
        "datasets": {kind: dataset.facts() for kind, dataset in by_kind.items()},
        "settings": settings,
        "libraries": {"tensorflow": tensorflow},
    }
    aims = aims_of(run.results, setup.kernels[0])
    heading = f"Records/s on {machine.title()}"
    return Report("", facts, aims, partial(draw, run.results, list(by_kind), heading))


def skipped(setup: Setup, python: str) -> list[str]:
    """Return a line for each thing that cannot be measured here, with a remedy."""
    lines = {
        f"{python} has no TensorFlow; name one with --tensorflow-python.": setup.tensorflow_python,
        "no tfrecord package; pip install 'streamrec[bench]'.": setup.tfrecord,
        "the native kernel cannot be loaded; build it with a C compiler.": "native"
        in setup.kernels,
    }
    return [line for line, is_there in lines.items() if not is_there]


# -- aims ------------------------------------------------------------------------------------------


PARSE_AIMS = (("recsys", 10), ("tokens", 5), ("raw-images", 3))
WHOLE_AIMS = (("recsys", 5), ("tokens", 5), ("images", 2))
"""Least times of TensorFlow's rate, by kind of data."""


def aims_of(results: Sequence[Result], kernel: str) -> list[Aim]:
    """Return the aims, of an implementation of the kernel, and of streams."""
    named = {one.case.title: one for one in results if one.measurements}
    own = f"streamrec, {kernel}"

    def least(name: str, aim: float, ours: str, other: str) -> Aim:
        return Aim(name, "times", aim, times(results, ours, other))

    def parsing(kind: str, aim: float, against: str, other: str) -> Aim:
        name = f"{kind} parsed on one core, of {against} on all"
        return least(name, aim, title(PARSING, kind, own), title(PARSING, kind, other))

    def whole(kind: str, aim: float, other: str) -> Aim:
        """Return the aim of the faster way to read a stream."""
        name, theirs = f"{kind} from files to batches, of {other}", title(WHOLE, kind, other)
        ways = (title(WHOLE, kind, f"sr.open, {way}") for way in STREAMS)
        aims = (least(name, aim, ours, theirs) for ours in ways)
        return max(aims, key=lambda one: one.measured or 0.0)

    small = named.get(title(FRAMES, "recsys", own))
    rate = small.median("records_per_second") if small else None
    large = (title(FRAMES, "images", name) for name in (own, CRC_ALONE))
    parsed = ("tf.io.parse_example", "tf.io.parse_example in a tf.function")
    others = list(zip(parsed, PARSED.values(), strict=True))
    return [
        Aim("small records found and checked", "million/s", 20, rate and rate / 1e6),
        least("large records checked, of the CRC alone", 0.8, *large),
        *(parsing(*kind, *other) for kind in PARSE_AIMS for other in others),
        *(whole(*kind, other) for kind in WHOLE_AIMS for other in PIPELINES.values()),
        *map(_memory_aim, (one for one in named.values() if one.case.group.startswith(MEMORY))),
    ]


def _memory_aim(result: Result) -> Aim:
    name = f"most memory in the second five epochs against the first five, {result.case.group}"
    return Aim(name, "times", 1.05, _growth(result), least=False)


def _growth(result: Result) -> float:
    measured = result.measurements[0]
    epochs = [measured[name] for name in sorted(measured) if name.startswith("resident")]
    half = len(epochs) // 2
    return max(epochs[half:]) / max(epochs[:half])


# -- the chart -------------------------------------------------------------------------------------


def draw(results: Sequence[Result], kinds: Sequence[str], title: str, target: Path) -> None:
    """Draw records a second: a row of panels for each level, a column for each kind of data."""
    levels = (FRAMES, PARSING, WHOLE)
    figure = new_figure(WIDTH * len(kinds), HEIGHT * len(levels))
    panels = figure.subplots(len(levels), len(kinds), squeeze=False)
    for level, row in zip(levels, panels, strict=True):
        for kind, panel in zip(kinds, row, strict=True):
            group = f"{level}, {kind}"
            _draw_panel(panel, group, [one for one in results if one.case.group == group])
    save_figure(figure, title, target)


def _draw_panel(panel: Any, group: str, members: Sequence[Result]) -> None:
    """Draw bars on a logarithmic scale."""
    measured = {one.case.name: one.median("records_per_second") for one in members}
    bars = [(name, rate, _color(name), _short(rate)) for name, rate in measured.items() if rate]
    if not bars:
        panel.set_axis_off()
        return
    draw_bars(panel, bars)
    rates = [rate for _, rate, _, _ in bars]
    panel.set_xscale("log")
    panel.set_xlim(min(rates) / 3, max(rates) * 12)
    panel.set_title(group, fontsize=9, loc="right")


def _color(name: str) -> str:
    if name.startswith(("streamrec", "sr.open")):
        return OWN
    return CEILING if "no frames" in name else OTHER


def _short(rate: float) -> str:
    for unit, scale in (("M", 1e6), ("k", 1e3)):
        if rate >= scale:
            return f"{rate / scale:.3g} {unit}"
    return f"{rate:.3g}"


if __name__ == "__main__":
    main()
