"""``streamrec bench``: what a store, a network and a machine really give, and what to change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamrec.cli.bench_measuring import (
    find_prices,
    measure,
    measuring_options,
    prices_option,
    refuse_dataset_alone,
    refuse_settings,
    write_report,
)
from streamrec.cli.options import (
    WholeNumber,
    debug_option,
    json_option,
    key_values,
    local_files,
    output_file_option,
    refuse_unused,
    size_value,
    storage_option,
)
from streamrec.cli.printing import print_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from click.shell_completion import CompletionItem


SHARDS = 64


@click.command()
@click.argument("network")
@click.argument(
    "shard",
    required=False,
    type=click.Path(dir_okay=False, path_type=Path),
    shell_complete=local_files,
)
@click.option(
    "--shards",
    type=WholeNumber(1),
    default=SHARDS,
    show_default=True,
    help="Shards of the simulated bucket.",
)
@click.option(
    "--shard-size",
    metavar="BYTES",
    callback=size_value,
    default="128MB",
    show_default=True,
    help="The size of each shard.",
)
@measuring_options
def simulate(
    *,
    network: str,
    shard: Path | None,
    shards: int,
    shard_size: int,
    config: Path | None,
    dataset: str | None,
    changes: dict[str, Any],
    world_size: int,
    **how: Any,
) -> None:
    """Measure a simulated bucket as `bench` measures a real one.

    NETWORK is a text such as latency=50ms,jitter=30%,bandwidth=60MB/s. The bucket holds copies of
    SHARD, a local file; without SHARD, it holds labelled pictures of about 100 KB.
    """
    from streamrec.measure.simulation import simulated
    from streamrec.measure.targets import dataset_settings, target_of_dataset

    refuse_dataset_alone(config, dataset)
    refuse_settings(changes, ("source", "storage_options"), "a simulated bucket has its own")
    with simulated(network, shards, shard_size, template=shard) as store:
        # --set cannot name them, as was checked above, so nothing is overridden.
        changes = {"storage_options": store.storage_options, **changes}
        settings = dataset_settings([store.source], config, dataset, changes)
        measure(
            target_of_dataset(settings, network),
            lambda one: one.measure_dataset(settings, world_size=world_size),
            **how,
        )


@click.command()
@click.argument("before", shell_complete=local_files)
@click.argument("after", shell_complete=local_files)
@output_file_option("--html", "Write the comparison as one file of HTML.")
@json_option
@debug_option
def compare(*, before: str, after: str, html: Path | None, as_json: bool) -> None:
    """Compare two files that `streamrec bench --json` wrote."""
    from rich.console import Console

    from streamrec.measure.comparison import compare as compare_figures
    from streamrec.measure.comparison import plain
    from streamrec.measure.figures import read_figures
    from streamrec.measure.reports import render_comparison, render_comparison_html

    view = compare_figures(read_figures(before), read_figures(after), (before, after))
    if as_json:
        print_json(plain(view))
    else:
        Console(highlight=False).print(render_comparison(view))
    if html is not None:
        write_report(html, render_comparison_html(view))


STORE = "s3"
"""The store whose prices a plan has, where its text does not give them."""


@click.command()
@click.argument("job")
@prices_option
@json_option
@debug_option
def plan(*, job: str, prices: Path | None, as_json: bool) -> None:
    """Work out on paper what a job needs; nothing is measured.

    JOB is what you know about the job, such as hosts=512,batch=1MB,step=150ms. If JOB gives no
    prices of the store, they are those of S3 in --prices.
    """
    from streamrec.measure.capacity import plan as plan_job

    table = find_prices(prices)
    store = table.stores[STORE]
    of_store = {
        "request_price": store.get_per_1000,
        "byte_price": store.egress_per_gb[table.reader],
    }
    planned = plan_job(job, prices=of_store)
    click.echo(planned.model_dump_json(indent=2) if as_json else str(planned))


class BranchingCommand(click.Group):
    """A command with options and arguments of its own, and with other commands beneath it.

    The name of one of these must be the first word after its own. It has options of its own, too.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the own options and arguments, but none where another command's name comes first."""
        if args and args[0] in self.commands:
            # Where invoke() looks for the command.
            ctx.args = args
            return args
        # A group's options end at its first argument, which is the name of a command.
        ctx.allow_interspersed_args = True
        rest = click.Command.parse_args(self, ctx, args)
        # While a shell completes a line, the line may be anything.
        if not ctx.resilient_parsing:
            self._refuse_late_name(ctx)
        return rest

    def _refuse_late_name(self, ctx: click.Context) -> None:
        """Refuse the name of a command after an option, where it would be a source."""
        # The name of a command after an option would be measured as a source, in silence.
        arguments = [one for one in self.params if isinstance(one, click.Argument)]
        for values in (ctx.params.get(one.name or "") for one in arguments):
            if values and values[0] in self.commands:
                name = values[0]
                ctx.fail(
                    f"{name!r} is a command, which must stand before all options; write "
                    f"`{ctx.command_path} {name} ...` (a file of this name is ./{name})"
                )

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that is named, or else this one."""
        if not ctx.args:
            return click.Command.invoke(self, ctx)
        name, *args = ctx.args
        command = self.commands[name]
        ctx.invoked_subcommand = name
        # Not by click's own `invoke`: that would run this command, too, before the one beneath it.
        with command.make_context(name, args, parent=ctx) as inner:
            return command.invoke(inner)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return its own parameters, but none where click writes the path of another command."""
        return super().get_params(ctx) if ctx.command is self else []


FEEDERS = ("tcp://", "tls://", "unix://")
OF_A_DATASET = ("config", "dataset", "storage_options")
OF_A_STORE = (*OF_A_DATASET, "prices", "max_requests")
"""Options without a meaning for a feeder, which reads its dataset from its store itself."""


def _files_or_commands(
    context: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Let the shell complete a source; the first word may also be a command's name."""
    files = local_files(context, param, incomplete)
    is_first = not context.params.get("urls")
    return (click.Group.shell_complete(bench, context, incomplete) if is_first else []) + files


@click.command(
    cls=BranchingCommand,
    invoke_without_command=True,
    subcommand_metavar="| COMMAND ...",
    short_help="Measure a store or a feeder, and say what to change.",
)
@click.argument("urls", metavar="[URL...]", nargs=-1, shell_complete=_files_or_commands)
@measuring_options
@prices_option
@click.option("--token", metavar="TOKEN", help="The feeder's token, or file:/path of it.")
@click.option(
    "--tls",
    metavar="NAME=FILE",
    multiple=True,
    callback=key_values,
    help="The files ca, cert and key for a tls:// feeder. Repeatable.",
)
@storage_option
def bench(urls: tuple[str, ...], *, token: str | None, tls: dict[str, str], **options: Any) -> None:
    """Measure how fast a training job reads from a store or a feeder, and say what to change.

    URL names a shard, is a glob, a {00000..00127} range or name@128, or the address of a feeder.
    The benchmark never spends more than --seconds, --max-bytes and --max-requests. After Ctrl-C, it
    prints what it has measured.
    """
    if _is_feeder(urls):
        refuse_unused("on a feeder", *OF_A_STORE)
        _measure_feeder(urls[0], token, tls, **options)
    else:
        refuse_unused("without the address of a feeder", "token", "tls")
        _measure_shards(urls, **options)


def _is_feeder(urls: Sequence[str]) -> bool:
    """Return whether the URLs are the address of a feeder.

    Raises:
        UsageError: They are one of a feeder, and more.
    """
    feeders = [url for url in urls if url.lower().startswith(FEEDERS)]
    if feeders and len(urls) > 1:
        raise click.UsageError(
            "one feeder is measured at a time; give its address alone (several hosts of one "
            "address have commas between)"
        )
    return bool(feeders)


def _feeder_route(
    address: str, changes: Mapping[str, Any], tls: Mapping[str, str]
) -> dict[str, Any]:
    """Return the options for connecting to a feeder.

    Raises:
        ConfigError: The address is malformed, or the files of TLS do not fit it.
        UsageError: A setting is the feeder's own.
    """
    from streamrec.feeder.access.access import tls_files
    from streamrec.feeder.access.address import Address

    # A client of a feeder chooses how many records its batches have, and nothing else.
    if others := sorted(changes.keys() - {"batch_size"}):
        raise click.UsageError(
            f"{', '.join(others)}: a feeder's own file has these settings; leave --set out"
        )
    files = tls_files(tls or None, Address.parse_all(address)[0])
    return {"tls": files, "batch_size": changes.get("batch_size")}


def _measure_feeder(
    address: str,
    token: str | None,
    tls: dict[str, str],
    *,
    changes: dict[str, Any],
    world_size: int,
    **options: Any,
) -> None:
    from streamrec.measure.targets import target_of_feeder

    route = _feeder_route(address, changes, tls) | {"token": token, "world_size": world_size}
    target = target_of_feeder(address)
    # Options of a dataset were refused above, if they were given.
    how = {name: options[name] for name in options.keys() - OF_A_DATASET}
    measure(target, lambda one: one.measure_feeder(address, **route), **how)


def _measure_shards(
    urls: Sequence[str],
    *,
    config: Path | None,
    dataset: str | None,
    changes: dict[str, Any],
    storage_options: dict[str, Any],
    world_size: int,
    **how: Any,
) -> None:
    from streamrec.measure.targets import dataset_settings, target_of_dataset

    refuse_dataset_alone(config, dataset)
    if not urls and config is None:
        raise click.UsageError(
            "there is nothing to measure; give URLs or --config, or simulate a bucket with "
            "`streamrec bench simulate`"
        )
    if urls:
        refuse_settings(changes, ("source",), "the URLs are the source")
    if storage_options:
        refuse_settings(changes, ("storage_options",), "--storage-option gives them")
        changes = {"storage_options": storage_options, **changes}
    settings = dataset_settings(urls, config, dataset, changes)
    measure(
        target_of_dataset(settings, None),
        lambda one: one.measure_dataset(settings, world_size=world_size),
        **how,
    )


for command in (compare, plan, simulate):
    bench.add_command(command)
