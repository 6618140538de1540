"""``streamrec bench``: what a store, a network and a machine really give, and what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streamrec.cli.bench_compare import compare
from streamrec.cli.bench_measuring import (
    measure,
    measuring_options,
    prices_option,
    refuse_dataset_alone,
    refuse_settings,
)
from streamrec.cli.bench_plan import plan
from streamrec.cli.bench_simulate import simulate
from streamrec.cli.branching import BranchingCommand
from streamrec.cli.completion import local_files
from streamrec.cli.options import key_values, refuse_unused, storage_option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from click.shell_completion import CompletionItem

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
@click.option("--token", metavar="TOKEN", help="The feeder's token, or file:/path of one.")
@click.option(
    "--tls",
    metavar="NAME=FILE",
    multiple=True,
    callback=key_values,
    help="The files ca, cert and key for a tls:// feeder. Repeatable.",
)
@storage_option
def bench(urls: tuple[str, ...], *, token: str | None, tls: dict[str, str], **options: Any) -> None:
    """Measure what shards in a store, or a feeder, give to a training job, and say what to change.

    URL is one of a shard, a glob, a {00000..00127} range or name@128, or the address of a feeder.
    What is spent never exceeds --seconds, --max-bytes and --max-requests. Ctrl-C prints what has
    been measured.
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
    from streamrec.feeder.access.address import Address
    from streamrec.feeder.access.tls import tls_files

    if own := sorted(changes.keys() - {"batch_size"}):
        raise click.UsageError(
            f"{', '.join(own)}: a feeder's own file has these settings; leave --set out"
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
