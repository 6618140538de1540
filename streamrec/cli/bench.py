"""``streamrec bench``: what a store, a network and a machine really give, and what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streamrec.cli.bench_compare import compare
from streamrec.cli.bench_measuring import measure, measuring_options, prices_option
from streamrec.cli.bench_plan import plan
from streamrec.cli.bench_simulate import simulate
from streamrec.cli.bench_target import (
    dataset_settings,
    feeder_route,
    is_feeder,
    refuse_settings,
    target_of_dataset,
    target_of_feeder,
)
from streamrec.cli.branching import BranchingCommand
from streamrec.cli.completion import local_files
from streamrec.cli.options import key_values, refuse_unused, storage_option

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from click.shell_completion import CompletionItem

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
    cls=BranchingCommand, invoke_without_command=True, subcommand_metavar="| COMMAND ..."
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
    if is_feeder(urls):
        refuse_unused("on a feeder", *OF_A_STORE)
        _measure_feeder(urls[0], token, tls, **options)
    else:
        refuse_unused("without the address of a feeder", "token", "tls")
        _measure_shards(urls, **options)


def _measure_feeder(
    address: str,
    token: str | None,
    tls: dict[str, str],
    *,
    changes: dict[str, Any],
    world_size: int,
    **options: Any,
) -> None:
    route = feeder_route(address, changes, tls) | {"token": token, "world_size": world_size}
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
