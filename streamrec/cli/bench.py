"""``streamrec bench``: what a store, a network and a machine really give, and what to change."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from streamrec.cli.bench_target import (
    dataset_settings,
    feeder_route,
    is_feeder,
    target_of_dataset,
    target_of_feeder,
)
from streamrec.cli.completion import local_files
from streamrec.cli.options import debug_option, json_option, key_values, size_value, storage_option
from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from contextlib import AbstractContextManager

    from streamrec.measure.benchmark import Benchmark
    from streamrec.measure.costs import Prices
    from streamrec.measure.figures import Figures, Limits, Target
    from streamrec.measure.simulation import SimulatedStore

    Verb = TypeVar("Verb", bound=Callable[..., Any])

SIMULATED_SHARDS = 64
PLANNED_STORE = "s3"
"""The store whose prices a plan has, where its text does not give them."""


def _seconds(context: click.Context, _: click.Parameter, text: str | None) -> float | None:
    if text is None or context.resilient_parsing:
        return None
    from streamrec.measure.quantities import parse_seconds

    try:
        return parse_seconds(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _file(option: str, text: str) -> Callable[[Verb], Verb]:
    path = click.Path(dir_okay=False, path_type=Path)
    return click.option(option, type=path, metavar="FILE", help=text)


def _written_file(option: str, text: str) -> Callable[[Verb], Verb]:
    path = click.Path(dir_okay=False, writable=True, path_type=Path)
    return click.option(option, type=path, metavar="FILE", help=text, callback=_in_a_directory)


def _in_a_directory(_: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Check before minutes are spent that a file can be written."""
    if path is None or path.exists():
        return path
    directory = path.absolute().parent
    if not directory.is_dir():
        raise click.BadParameter(f"there is no directory {directory}; create it", param=parameter)
    if not os.access(directory, os.W_OK):
        raise click.BadParameter(
            f"the directory {directory} cannot be written; name another one", param=parameter
        )
    return path


@click.command()
@click.argument("urls", metavar="[URL...]", nargs=-1, shell_complete=local_files)
@_file("--config", "Take the dataset's settings from this file of a feeder.")
@click.option("--dataset", metavar="NAME", help="The dataset of --config. [the only one]")
@click.option(
    "--set",
    "changes",
    metavar="NAME=VALUE",
    multiple=True,
    callback=key_values,
    help="A setting of the dataset, such as batch_size=64; the value may be JSON. Repeatable.",
)
@click.option(
    "--step-time",
    "step_seconds",
    metavar="TIME",
    callback=_seconds,
    help="Simulate a trainer that takes so long for a batch, such as 120ms. [no time]",
)
@click.option(
    "--world-size", type=click.IntRange(1), default=1, help="Read as one rank of this many."
)
@click.option(
    "--seconds", type=click.FloatRange(1), default=60.0, show_default=True, help="The most time."
)
@click.option(
    "--max-bytes",
    metavar="BYTES",
    callback=size_value,
    default="10GB",
    show_default=True,
    help="The most bytes to ask the store for.",
)
@click.option(
    "--max-requests",
    type=click.IntRange(1),
    default=20_000,
    show_default=True,
    help="The most requests to the store.",
)
@_file("--prices", "Take prices from this file. [those that come with streamrec]")
@click.option("--token", metavar="TOKEN", help="The feeder's token, or file:/path of one.")
@click.option(
    "--tls",
    metavar="NAME=FILE",
    multiple=True,
    callback=key_values,
    help="The files ca, cert and key for a tls:// feeder. Repeatable.",
)
@_written_file("--html", "Write the report as one file of HTML.")
@_written_file(
    "--trace", "Write what the stream did when, for ui.perfetto.dev or chrome://tracing."
)
@click.option("--compare", "do_compare", is_flag=True, help="Compare two files of --json: A B.")
@click.option(
    "--simulate",
    "simulation",
    metavar="TEXT",
    help="Measure a simulated bucket, such as latency=50ms,jitter=30%,bandwidth=60MB/s.",
)
@click.option(
    "--shards",
    type=click.IntRange(1),
    default=SIMULATED_SHARDS,
    show_default=True,
    help="Shards of the simulated bucket.",
)
@click.option(
    "--shard-size",
    metavar="BYTES",
    callback=size_value,
    default="128MB",
    show_default=True,
    help="The size of each of them.",
)
@click.option(
    "--plan",
    "workload",
    metavar="TEXT",
    help="Work out on paper what a job needs, such as hosts=512,batch=1MB,step=150ms.",
)
@storage_option
@json_option
@debug_option
def bench(urls: tuple[str, ...], workload: str | None, do_compare: bool, **options: Any) -> None:
    """Measure what shards in a store, or a feeder, give to a training job, and say what to change.

    URL is one of a shard, a glob, a {00000..00127} range or name@128, or the address of a feeder.
    What is spent never exceeds --seconds, --max-bytes and --max-requests. Ctrl-C prints what has
    been measured.
    """
    if workload is not None:
        _plan(workload, options["prices"])
    elif do_compare:
        _compare(urls, options["html"], as_json=options["as_json"])
    else:
        _measure(urls, **options)


def _plan(workload: str, prices: Path | None) -> None:
    from streamrec.measure.capacity import plan

    known = _prices(prices)
    store = known.stores[PLANNED_STORE]
    of_store = {
        "request_price": store.get_per_1000,
        "byte_price": store.egress_per_gb[known.reader],
    }
    click.echo(str(plan(workload, prices=of_store)))


def _prices(path: Path | None) -> Prices:
    from streamrec.measure.costs import read_prices

    return read_prices() if path is None else read_prices(path)


def _compare(paths: Sequence[str], html: Path | None, *, as_json: bool) -> None:
    from rich.console import Console

    from streamrec.measure.comparison import compare
    from streamrec.measure.files import read_figures
    from streamrec.measure.report import render_comparison_html
    from streamrec.measure.text import render_comparison

    if len(paths) != 2 or as_json:
        raise click.UsageError("--compare takes two files that --json wrote, and prints text")
    one, other = map(read_figures, paths)
    found = compare(one, other, (paths[0], paths[1]))
    Console(highlight=False).print(render_comparison(found))
    if html is not None:
        _write(html, render_comparison_html(found))


def _measure(
    urls: tuple[str, ...],
    *,
    html: Path | None,
    trace: Path | None,
    as_json: bool,
    seconds: float,
    max_bytes: int,
    max_requests: int,
    prices: Path | None,
    step_seconds: float | None,
    **of_target: Any,
) -> None:
    """Measure a target, and report what was measured, whatever ended it."""
    from streamrec.cli.bench_progress import BenchmarkProgress
    from streamrec.flow.bridge import Bridge
    from streamrec.measure.benchmark import Benchmark
    from streamrec.measure.budget import Budget
    from streamrec.measure.figures import Limits
    from streamrec.measure.spans import Spans

    limits = Limits(seconds=seconds, bytes=max_bytes, requests=max_requests)
    known_prices = _prices(prices)
    spans = None if trace is None else Spans()
    with _target(urls, **of_target) as (target, measure):
        click.echo(_beginning(target, limits, known_prices), err=True)
        budget = Budget(limits)
        progress = BenchmarkProgress(limits, lambda: budget.spent)
        benchmark = Benchmark(
            target, budget, known_prices, progress, step_seconds=step_seconds, spans=spans
        )
        try:
            with progress, Bridge() as loop:
                loop.call(measure(benchmark))
        finally:
            # An error and Ctrl-C go on after what is known has been reported.
            figures = benchmark.figures()
            if figures.listing is not None or figures.job is not None:
                _report(figures, html, as_json=as_json)
            if trace is not None and spans is not None:
                _write(trace, spans.to_json())


@contextmanager
def _target(
    urls: Sequence[str],
    *,
    config: Path | None,
    dataset: str | None,
    changes: dict[str, Any],
    storage_options: dict[str, Any],
    world_size: int,
    token: str | None,
    tls: dict[str, str],
    simulation: str | None,
    shards: int,
    shard_size: int,
) -> Iterator[tuple[Target, Callable[[Benchmark], Coroutine[Any, Any, None]]]]:
    """Yield the description of what to measure, and what measures it."""
    if is_feeder(urls):
        route = feeder_route(urls[0], changes, tls)
        route |= {"token": token, "world_size": world_size}
        yield target_of_feeder(urls[0]), lambda one: one.measure_feeder(urls[0], **route)
        return
    options = {"storage_options": storage_options} if storage_options else {}
    with ExitStack() as stack:
        if simulation is not None:
            found = stack.enter_context(_simulated(urls, simulation, shards, shard_size))
            urls, options = [found.source], {"storage_options": found.storage_options}
        settings = dataset_settings(
            urls, None if config is None else str(config), dataset, options | changes
        )
        target = target_of_dataset(settings, simulation)
        yield target, lambda one: one.measure_dataset(settings, world_size=world_size)


def _simulated(
    urls: Sequence[str], text: str, shards: int, shard_bytes: int
) -> AbstractContextManager[SimulatedStore]:
    from streamrec.measure.simulation import simulated

    if len(urls) > 1:
        raise click.UsageError("--simulate repeats one local shard; give one path, or none")
    template = Path(urls[0]) if urls else None
    return simulated(text, shards, shard_bytes, template=template)


def _beginning(target: Target, limits: Limits, prices: Prices) -> str:
    """Return what is going to be measured, and what it may spend."""
    from streamrec.cli.printing import megabytes
    from streamrec.measure.costs import most_costs

    where = target.urls[0] if len(target.urls) == 1 else f"{len(target.urls)} sources"
    spend = f"{limits.seconds:g} s, {megabytes(limits.bytes)} and {limits.requests:,} requests"
    money = most_costs(target, limits, prices)
    price = "" if money is None else f", for {money:,.2f} {prices.currency}"
    return f"measuring {where}, with at most {spend}{price}"


def _report(figures: Figures, html: Path | None, *, as_json: bool) -> None:
    from rich.console import Console

    from streamrec.measure.report import render_html
    from streamrec.measure.text import render

    if as_json:
        click.echo(figures.model_dump_json(indent=2))
    else:
        Console(highlight=False).print(render(figures))
    if html is not None:
        _write(html, render_html(figures))


def _write(path: Path, text: str) -> None:
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
