"""``streamrec reshard``: write existing shards anew, merged, split, shuffled or compressed."""

from __future__ import annotations

from typing import Any

import click

from streamrec.cli.options import (
    check_dest,
    debug_option,
    dest_option,
    json_option,
    local_files,
    record_option,
    refuse_unused,
    seed_option,
    shuffle_option,
    size_value,
    storage_option,
    task_option,
)
from streamrec.cli.printing import dataset_line, next_line, print_json, progress_bar
from streamrec.masking import masked


@click.command(short_help="Write shards anew: merged, split, shuffled, recompressed.")
@click.option(
    "--shards", type=click.IntRange(min=1), help="Number of shards, of all splits together."
)
@click.option(
    "--shard-size",
    "shard_bytes",
    metavar="BYTES",
    callback=size_value,
    help="Most bytes of a shard before compression. [128MB unless --shards is given]",
)
@click.option(
    "--compression",
    type=click.Choice(["auto", "none", "gzip", "zlib", "zstd"]),
    default="auto",
    show_default=True,
    help="The new shards' compression; auto: by DEST's suffix.",
)
@shuffle_option
@seed_option
@click.option(
    "--memory",
    metavar="BYTES",
    default="1GiB",
    show_default=True,
    callback=size_value,
    help="Most memory for reading and --shuffle; more records wait on the disk of TMPDIR.",
)
@click.option(
    "--split",
    "fractions",
    metavar="NAME=FRACTION,...",
    help="Write a dataset for each split, as train=0.9,validation=0.1. A hash of the record "
    "decides.",
)
@click.option(
    "--split-by", metavar="FEATURE", help="Let a hash of this feature's value decide instead."
)
@task_option
@click.option("--overwrite", is_flag=True, help="Replace a dataset of DEST's names.")
@dest_option
@json_option
@debug_option
@storage_option
@record_option
@click.argument("source", metavar="SOURCE...", nargs=-1, required=True, shell_complete=local_files)
@click.argument("dest", shell_complete=local_files)
def reshard(*, source: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Write shards anew: merged, split, shuffled, of other sizes or compression.

    SOURCE is a URL, a glob, a {00000..00127} range or name@128, as for cat; several are merged, in
    the order of their names. DEST is a template such as gs://bucket/train.tfrecord, whose shards
    are train-00000-of-00128.tfrecord and so on, or a directory with a slash at the end. A split's
    name is put after the template's, as in pets-train-00000-of-00115.tfrecord.

    Checks the CRCs of every record. The order stays, unless --shards deals the records out in turn.
    An index and a manifest are written beside the shards. Run it again after a crash: it ends with
    the same bytes.
    """
    datasets = _write(source, **options)
    if as_json:
        print_json({"datasets": datasets})
    else:
        templates = [one["template"] for one in datasets]
        click.echo(
            "\n".join([*map(dataset_line, datasets), *next_line(templates, options["task"])])
        )


def _write(
    urls: tuple[str, ...],
    *,
    dest: str,
    storage_options: dict[str, Any],
    dest_options: dict[str, Any],
    max_record_bytes: int | None,
    is_shuffled: bool,
    seed: int,
    fractions: str | None,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Write the datasets, and return the facts to print."""
    from streamrec.datasets.reshard import Resharding, reshard
    from streamrec.datasets.shard_source import ShardSource
    from streamrec.plan.order.splits import Splits

    # `split` is another name of this verb, and says what is meant.
    if fractions is None and click.get_current_context().info_name == "split":
        raise click.UsageError("the splits are missing; give --split, as in train=0.9,test=0.1")
    if settings["split_by"] and fractions is None:
        raise click.UsageError("--split-by names the key of splits: give --split, too")
    if settings["shards"] is not None:
        refuse_unused("beside --shards", "shard_bytes")
    if not is_shuffled:
        refuse_unused("without --shuffle", "seed")
    if settings["shards"] is None and settings["shard_bytes"] is None:
        # Not the option's default, which would contradict --shards.
        settings["shard_bytes"] = 128_000_000
    plan = Resharding(
        check_dest(dest),
        shuffle=seed if is_shuffled else None,
        splits=None if fractions is None else Splits.parse(fractions),
        # Mostly both places are in one store.
        storage_options=dest_options or storage_options,
        **settings,
    )
    source = ShardSource.find(urls, storage_options, max_record_bytes)
    with progress_bar("bytes") as progress:
        written = reshard(source, plan, progress)
    return [{**one._asdict(), "template": masked(one.template)} for one in written]
