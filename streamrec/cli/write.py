"""``streamrec write``: shards from pictures, tables, JSON lines and functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streamrec.cli.completion import local_files
from streamrec.cli.options import debug_option, json_option, size_value, storage_option, task_value
from streamrec.cli.printing import megabytes, print_json, progress_bar

if TYPE_CHECKING:
    from streamrec.shard_tools.convert import Outcome, SplitPlan

KINDS = ["csv", "jsonl", "generator", "arrow", "pictures"]
LISTED = 20
"""Skipped records that are printed for people."""


@click.command()
@click.argument("source", shell_complete=local_files)
@click.argument("destination", metavar="DEST", shell_complete=local_files)
@click.option("--kind", type=click.Choice(KINDS), help="What SOURCE is; by default its name tells.")
@click.option("--shards", type=click.IntRange(1), metavar="N", help="The number of shards.")
@click.option(
    "--shard-size",
    callback=size_value,
    metavar="BYTES",
    help="The most bytes of a shard, before compression.  [128MB, without --shards]",
)
@click.option(
    "--split", metavar="NAME=PART,...", help="Divide the records, as in train=0.9,test=0.1."
)
@click.option("--compression", metavar="NAME", help="gzip, zlib or zstd; auto: by DEST's suffix.")
@click.option("--features", metavar="NAME[=TYPE],...", help="Only these features, with types.")
@click.option(
    "--task",
    metavar="I/N",
    default="0/1",
    callback=task_value,
    help="Write the part of task I of N, from 0.",
)
@click.option("--workers", type=click.IntRange(1), metavar="N", help="By default all cores.")
@click.option(
    "--on-error",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="What to do about a record that is wrong.",
)
@click.option("--dry-run", is_flag=True, help="Count, print the plan, and write nothing.")
@click.option("--overwrite", is_flag=True, help="Replace a dataset of the same name.")
@click.option("--resize", metavar="WxH", help="Pictures: resize them all to this size.")
@click.option("--encode", type=click.Choice(["jpeg", "png"]), help="Pictures: encode them anew.")
@click.option("--quality", type=click.IntRange(0, 100), help="Pictures: of JPEGs.  [95]")
@click.option("--key", metavar="FEATURE", help="Records: the feature that determines the split.")
@click.option("--delimiter", metavar="CHAR", help="CSV: between values.  [comma; tab in .tsv]")
@click.option("--null", metavar="TEXT", multiple=True, help="CSV: stands for no value. Repeatable.")
@click.option("--source-version", metavar="TEXT", help="Functions: tells other records apart.")
@storage_option
@json_option
@debug_option
def write(*, as_json: bool, dry_run: bool, **options: Any) -> None:
    """Write a dataset from SOURCE: shards, index and manifest.

    SOURCE is a folder of pictures with one folder for each class; a file, a pattern or a folder of
    CSV, JSON lines, Parquet or Arrow; or module:function, which yields records. DEST is the shards'
    URL or path without their numbers, such as gs://bucket/train.tfrecord, or a directory with a
    slash at the end. The same bytes are written by any number of workers. A run that was killed is
    run again with the same command.
    """
    outcome, shard_size = _write(dry_run=dry_run, **options)
    facts = {
        "dry_run": dry_run,
        "splits": [_facts(split, shard_size) for split in outcome.splits],
        "skipped": outcome.skipped,
        "errors": [str(error) for error in outcome.refusals],
    }
    if as_json:
        print_json(facts)
    else:
        click.echo("\n".join(_lines(facts)))


def _write(
    source: str,
    destination: str,
    kind: str | None,
    shards: int | None,
    shard_size: int | None,
    split: str | None,
    compression: str | None,
    task: tuple[int, int],
    workers: int | None,
    on_error: str,
    overwrite: bool,
    storage_options: dict[str, Any],
    dry_run: bool,
    **options: Any,
) -> tuple[Outcome, int | None]:
    """Write the dataset, and return what there is to print, and the size of shards."""
    from streamrec.config.cores import usable_cores
    from streamrec.pipeline.functions import load
    from streamrec.plan.shard_names import Task
    from streamrec.plan.splits import Splits
    from streamrec.shard_tools.convert import Destination, convert
    from streamrec.shard_tools.sources.opening import open_source, parse_features
    from streamrec.shard_tools.sources.reading import Reader, read_source

    given = {name: value for name, value in options.items() if value not in (None, ())}
    if "features" in given:
        given["features"] = parse_features(given["features"])
    splits = Splits.parse(split) if split else None
    if shards is None and shard_size is None:
        shard_size = 128_000_000
    where = Destination(
        destination, Task.of(task), shards, shard_size, compression, overwrite, storage_options
    )
    opened = open_source(source, kind, given, load)
    reader = Reader(opened, splits, skips=on_error == "skip")
    blocks = read_source(opened, reader, where.task, workers or usable_cores())
    with progress_bar(opened.unit) as progress:
        done = convert(opened, blocks, where, splits, dry_run=dry_run, progress=progress)
    return done, shard_size


def _facts(split: SplitPlan, shard_size: int | None) -> dict[str, Any]:
    from streamrec.masking import masked

    shards = split.shards
    if shards is None and shard_size is not None and split.bytes is not None:
        shards = max(1, -(-split.bytes // shard_size))
    return {
        "name": split.name,
        "shards_at": masked(split.template),
        "records": split.records,
        "bytes": split.bytes,
        "shards": shards,
    }


def _lines(facts: dict[str, Any]) -> list[str]:
    lines = [f"skipped: {error}" for error in facts["errors"][:LISTED]]
    if facts["skipped"]:
        lines.append(f"{facts['skipped']:,} records were skipped")
    for split in facts["splits"]:
        line = f"{split['shards_at']}: {split['records']:,} records"
        if facts["dry_run"]:
            line += f", {megabytes(split['bytes'] or 0)}, about {split['shards']:,} shards"
        lines.append(line)
    return [*lines, "nothing was written"] if facts["dry_run"] else lines
