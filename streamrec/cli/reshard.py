"""``streamrec reshard``: write existing shards anew, merged, split, shuffled or compressed."""

from __future__ import annotations

from typing import Any

import click

from streamrec.cli.options import (
    WholeNumber,
    check_dest,
    debug_option,
    dest_option,
    exclude_option,
    json_option,
    local_files,
    memory_option,
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
@click.option("--shards", type=WholeNumber(min=1), help="Number of shards, of all splits together.")
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
@memory_option
@click.option(
    "--split",
    "fractions",
    metavar="NAME=FRACTION,...",
    help="Write a dataset for each split, such as train=0.9,validation=0.1. A hash of each record "
    "decides its split.",
)
@click.option("--split-by", metavar="FEATURE", help="With --split: a hash of this feature decides.")
@exclude_option
@task_option
@click.option("--overwrite", is_flag=True, help="Replace a dataset of the same name.")
@dest_option
@json_option
@debug_option
@storage_option
@record_option
@click.argument("source", metavar="SOURCE...", nargs=-1, required=True, shell_complete=local_files)
@click.argument("dest", shell_complete=local_files)
def reshard(*, source: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Write shards anew: merged, split, shuffled, in other sizes or with other compression.

    SOURCE is a URL, a glob, a {00000..00127} range or name@128, as for cat. Several sources are
    merged, in the order of the shards' names. DEST is a template such as
    gs://bucket/train.tfrecord, whose shards are train-00000-of-00128.tfrecord and so on, or a
    directory with a slash at the end. The name of a split follows that of the template, as in
    pets-train-00000-of-00115.tfrecord.

    Checks the CRCs of every record. Keeps the order of the records, unless --shards deals them out
    in turn. Writes an index and a manifest beside the shards. Run it again after a crash: it ends
    with the same bytes. --exclude LIST leaves records out for good; streamrec verify --against
    SOURCE --exclude LIST proves it.
    """
    from streamrec.report.words import quantity

    datasets, excluded = _write(source, **options)
    if as_json:
        print_json({"datasets": datasets} | ({} if excluded is None else {"excluded": excluded}))
    else:
        templates = [one["template"] for one in datasets]
        told = [] if excluded is None else [quantity(excluded, "record is", "records are")]
        left_out = [f"{count} left out" for count in told]
        lines = [*map(dataset_line, datasets), *left_out, *next_line(templates, options["task"])]
        click.echo("\n".join(lines))


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
    exclude: str | None,
    **settings: Any,
) -> tuple[list[dict[str, Any]], int | None]:
    """Write the datasets; return the facts to print, and the number of records left out."""
    from streamrec.datasets.reshard import Resharding, excluded_by, reshard
    from streamrec.datasets.shard_source import ShardSource
    from streamrec.plan.order.shard_names import Splits

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
    with progress_bar("bytes") as progress:
        source = ShardSource.find(urls, storage_options, max_record_bytes, exclude, progress)
        written = reshard(source, plan, progress)
    facts = [{**one._asdict(), "template": masked(one.template)} for one in written]
    return facts, excluded_by(source, plan)
