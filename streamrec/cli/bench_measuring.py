"""The options of all measurements, and the run of one: its limits, progress and report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from streamrec.cli.options import (
    RealNumber,
    WholeNumber,
    debug_option,
    json_option,
    output_file_option,
    size_value,
    stream_options,
)
from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from streamrec.measure.benchmark import Benchmark
    from streamrec.measure.budget import Prices
    from streamrec.measure.figures import Figures, Limits, Target

    Verb = TypeVar("Verb", bound=Callable[..., Any])


def _seconds(context: click.Context, _: click.Parameter, text: str | None) -> float | None:
    if text is None or context.resilient_parsing:
        return None
    from streamrec.measure.simulation import parse_seconds

    try:
        return parse_seconds(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


prices_option = click.option(
    "--prices",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Take prices from this file. [those that come with streamrec]",
)
_OPTIONS = (
    click.option(
        "--step-time",
        "step_seconds",
        metavar="TIME",
        callback=_seconds,
        help="Simulate a trainer that takes this time for a batch, such as 120ms. [no time]",
    ),
    click.option(
        "--world-size", type=WholeNumber(1), default=1, help="Read as one rank of this many."
    ),
    click.option(
        "--seconds",
        type=RealNumber(1),
        default=60.0,
        show_default=True,
        help="The most time.",
    ),
    click.option(
        "--max-bytes",
        metavar="BYTES",
        callback=size_value,
        default="10GB",
        show_default=True,
        help="The most bytes to ask the store for.",
    ),
    click.option(
        "--max-requests",
        type=WholeNumber(1),
        default=20_000,
        show_default=True,
        help="The most requests to the store.",
    ),
    output_file_option("--html", "Write the report as one file of HTML."),
    output_file_option(
        "--trace", "Write what the stream did when, for ui.perfetto.dev or chrome://tracing."
    ),
    json_option,
    debug_option,
)


def measuring_options(verb: Verb) -> Verb:
    """Add the options of all measurements to a verb."""
    # The last decorator comes first in --help.
    for add in reversed(_OPTIONS):
        verb = add(verb)
    return stream_options(verb)


def refuse_settings(changes: Mapping[str, Any], names: Sequence[str], why: str) -> None:
    """Refuse settings of ``--set`` that another argument gives.

    Raises:
        UsageError: One of them is there.
    """
    for name in names:
        if name in changes:
            raise click.UsageError(f"--set {name}: {why}; leave this out")


def refuse_dataset_alone(config: Path | None, dataset: str | None) -> None:
    """Refuse the name of a dataset without the file that has it.

    Raises:
        UsageError: There is no file.
    """
    if dataset is not None and config is None:
        raise click.UsageError("--dataset is the name of one in a feeder's file; add --config FILE")


def find_prices(path: Path | None) -> Prices:
    """Return the prices of a file, or else those that come with streamrec."""
    from streamrec.measure.budget import read_prices

    return read_prices() if path is None else read_prices(path)


def measure(
    target: Target,
    run: Callable[[Benchmark], Coroutine[Any, Any, None]],
    prices: Path | None = None,
    *,
    html: Path | None,
    trace: Path | None,
    as_json: bool,
    seconds: float,
    max_bytes: int,
    max_requests: int,
    step_seconds: float | None,
) -> None:
    """Measure a target, and report what was measured, whatever ended it.

    Args:
        target: The description of what is measured.
        run: Measures it.
        prices: The file of prices; ``None``: the one that comes with streamrec.
        html: The file for the report.
        trace: The file for what the stream did when.
        as_json: Print the figures as JSON.
        seconds: The most time.
        max_bytes: The most bytes to ask the store for.
        max_requests: The most requests to the store.
        step_seconds: The simulated trainer's time for a batch.
    """
    from streamrec.flow.bridge import Bridge
    from streamrec.measure.benchmark import Benchmark
    from streamrec.measure.budget import Budget
    from streamrec.measure.figures import Limits
    from streamrec.measure.reports import BenchmarkProgress
    from streamrec.measure.spans import Spans

    limits = Limits(seconds=seconds, bytes=max_bytes, requests=max_requests)
    # Before anything is spent: a wrong file of prices ends the command here.
    table = find_prices(prices)
    spans = None if trace is None else Spans()
    # What will be spent is told before it is, so that Ctrl-C is in time.
    click.echo(_beginning(target, limits, table), err=True)
    budget = Budget(limits)
    progress = BenchmarkProgress(limits, lambda: budget.spent)
    benchmark = Benchmark(target, budget, table, progress, step_seconds=step_seconds, spans=spans)
    try:
        with progress, Bridge() as loop:
            loop.call(run(benchmark))
    finally:
        # An error and Ctrl-C go on after what is known has been reported.
        figures = benchmark.figures()
        # Nothing to report of a target that was never reached.
        if figures.listing is not None or figures.job is not None:
            _report(figures, html, as_json=as_json)
        # After the report: a trace that cannot be written must not cost the figures.
        if trace is not None and spans is not None:
            write_report(trace, spans.to_json())


def _beginning(target: Target, limits: Limits, prices: Prices) -> str:
    """Return what is going to be measured, and what it may spend."""
    from streamrec.measure.budget import most_costs
    from streamrec.report.words import size

    where = target.urls[0] if len(target.urls) == 1 else f"{len(target.urls)} sources"
    spend = f"{limits.seconds:g} s, {size(limits.bytes)} and {limits.requests:,} requests"
    money = most_costs(target, limits, prices)
    price = "" if money is None else f", for at most {money:,.2f} {prices.currency}"
    return f"measuring {where}, with at most {spend}{price}"


def _report(figures: Figures, html: Path | None, *, as_json: bool) -> None:
    from rich.console import Console

    from streamrec.measure.reports import render, render_html

    if as_json:
        click.echo(figures.model_dump_json(indent=2))
    else:
        Console(highlight=False).print(render(figures))
    if html is not None:
        write_report(html, render_html(figures))


def write_report(path: Path, text: str) -> None:
    """Write a file after the figures are printed, so that they are not lost with it.

    Raises:
        ConfigError: It cannot be written.
    """
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror}); name another file"
        ) from None
