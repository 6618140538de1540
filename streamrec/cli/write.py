"""``streamrec write``: shards from pictures, tables, text, other formats and functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from streamrec.cli.options import (
    RealNumber,
    WholeNumber,
    check_dest,
    debug_option,
    dest_option,
    json_option,
    local_files,
    memory_option,
    refuse_unused,
    seed_option,
    shuffle_option,
    size_value,
    storage_option,
    task_option,
)
from streamrec.cli.printing import dataset_line, next_line, print_json, progress_bar
from streamrec.sources.opening import KINDS, options_of_kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamrec.datasets.convert import Conversion, Destination, Outcome, SplitPlan
    from streamrec.sources.source import Option

    Verb = TypeVar("Verb", bound=Callable[..., Any])

LISTED = 20
"""Skipped records that are printed for people."""
CHOOSING = "features", "types", "drop"
"""The options of tables that stand before those of the run."""


def kind_options(*, choosing: bool) -> Callable[[Verb], Verb]:
    """Return the options that kinds declare: those that choose columns, or the others."""
    options = [o for o in options_of_kinds().values() if (o.name in CHOOSING) == choosing]

    def add(verb: Verb) -> Verb:
        for option in reversed(options):  # as decorators are applied
            verb = _click_option(option)(verb)
        return verb

    return add


def _click_option(option: Option) -> Callable[[Verb], Verb]:
    flag = option.on_command_line
    opposite = flag.replace("--", "/--no-", 1) if option.has_opposite else ""
    return click.option(
        flag + opposite,
        option.name,
        type=_click_type(option),
        is_flag=option.type is bool,
        default=None,
        multiple=option.is_repeatable,
        metavar=option.metavar,
        shell_complete=local_files if option.is_place else None,
        help=option.help,
    )


def _click_type(option: Option) -> Any:
    if option.choices:
        return click.Choice(option.choices)
    if option.least is None and option.most is None:
        return option.type
    bounded = RealNumber if option.type is float else WholeNumber
    return bounded(option.least, option.most)


@click.command()
@click.argument("source", shell_complete=local_files)
@click.argument("destination", metavar="DEST", required=False, shell_complete=local_files)
@click.option(
    "--kind",
    type=click.Choice(list(KINDS)),
    help="The kind of SOURCE; by default its name tells it.",
)
@click.option("--shards", type=WholeNumber(1), metavar="N", help="The number of shards.")
@click.option(
    "--shard-size",
    callback=size_value,
    metavar="BYTES",
    help="The most bytes of a shard, before compression.  [128MB, without --shards]",
)
@click.option(
    "--split", metavar="NAME=PART,...", help="Divide the records, as in train=0.9,test=0.1."
)
@shuffle_option
@seed_option
@memory_option
@click.option("--compression", metavar="NAME", help="gzip, zlib or zstd; auto: by DEST's suffix.")
@kind_options(choosing=True)
@task_option
@click.option(
    "--workers", type=WholeNumber(1), metavar="N", help="The number of processes. [all cores]"
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="ray: write by tasks on a Ray cluster, each with --workers cores, by default 1.",
)
@click.option("--tasks", type=WholeNumber(1), metavar="N", help="Ray: by default one for each CPU.")
@click.option(
    "--on-error",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="What to do about a wrong record.",
)
@click.option("--dry-run", is_flag=True, help="Count, print the plan, and write nothing.")
@click.option("--overwrite", is_flag=True, help="Replace another dataset of the same name.")
@kind_options(choosing=False)
@storage_option
@dest_option
@json_option
@debug_option
def write(*, as_json: bool, dry_run: bool, **options: Any) -> None:
    """Write a dataset from SOURCE: shards, index and manifest.

    SOURCE is a folder of pictures with one folder for each class; a file, a pattern or a folder of
    CSV, JSON lines, Parquet, Arrow, WebDataset tars or ArrayRecord, or with --kind bert of text; a
    folder of MDS shards; or module:function, which yields records. Files may be in a store, as
    s3://bucket/*.csv. DEST is the shards' URL or path without their numbers, such as
    gs://bucket/train.tfrecord, or a directory with a slash at the end. Any number of workers writes
    the same bytes. After a run was killed, the same command continues it. If everything is written
    already, nothing is read.
    """
    _refuse_unused(**options)
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
        click.echo("\n".join(_lines(facts, options["task"])))


def _refuse_unused(
    *,
    shards: int | None,
    is_shuffled: bool,
    split: str | None,
    resize: str | None,
    encode: str | None,
    **_: Any,
) -> None:
    if shards is not None:
        refuse_unused("beside --shards", "shard_size")
    if not is_shuffled:
        refuse_unused("without --shuffle", "seed")
    if split is None:
        refuse_unused("without --split", "key")
    if encode == "png":
        refuse_unused("beside --encode png", "quality")
    if encode is None and resize is None:
        refuse_unused("without --encode jpeg or --resize", "quality")


def _write(
    *,
    source: str,
    destination: str | None,
    engine: str,
    tasks: int | None,
    task: tuple[int, int],
    shards: int | None,
    shard_size: int | None,
    compression: str | None,
    overwrite: bool,
    dest_options: dict[str, Any],
    dry_run: bool,
    **options: Any,
) -> tuple[Outcome, int | None]:
    """Write the dataset, and return what there is to print, and the size of shards."""
    from streamrec.datasets.convert import Destination
    from streamrec.plan.order.shard_names import Task

    _check_engine(engine, tasks, task)
    if shards is None and shard_size is None:
        # Not the option's default, which would contradict --shards.
        shard_size = 128_000_000
    source, template = _places(source, destination, options["metadata_files"])
    # Mostly both places are in one store.
    stored = dest_options or options["storage_options"]
    where = Destination(
        template=template,
        task=Task.of(task),
        shards=shards,
        shard_bytes=shard_size,
        compression=compression,
        overwrite=overwrite,
        storage_options=stored,
    )
    conversion = _conversion(source, where, **options)
    # A dry run only counts, and needs no cluster.
    if engine == "ray" and not dry_run:
        with progress_bar("tasks") as progress:
            return _on_ray()(conversion, tasks, progress), shard_size
    # Before the progress bar, whose unit the source tells.
    opened = conversion.open()
    with progress_bar(opened.unit) as progress:
        return conversion.run(opened, dry_run=dry_run, progress=progress), shard_size


def _places(source: str, destination: str | None, lists: Sequence[str]) -> tuple[str, str]:
    """Return SOURCE and DEST, of which only DEST is given where lists name the files."""
    if destination is not None:
        return source, check_dest(destination)
    if not lists:
        raise click.UsageError("the place of the shards is missing; give DEST after SOURCE")
    return "", check_dest(source)


def _check_engine(engine: str, tasks: int | None, task: tuple[int, int]) -> None:
    if engine == "ray" and task != (0, 1):
        raise click.UsageError("--engine ray runs all tasks: leave out --task")
    if engine == "local" and tasks is not None:
        raise click.UsageError(
            "--tasks is for --engine ray; --task I/N writes the part of one task"
        )


def _conversion(
    source: str,
    where: Destination,
    *,
    kind: str | None,
    split: str | None,
    is_shuffled: bool,
    seed: int,
    memory: int,
    workers: int | None,
    on_error: str,
    storage_options: dict[str, Any],
    **options: Any,
) -> Conversion:
    from streamrec.datasets.convert import Conversion, Shuffle
    from streamrec.plan.order.shard_names import Splits
    from streamrec.sources.source import Memory

    # Only what was typed: the opening of a kind has its own defaults.
    values = {name: value for name, value in options.items() if value not in (None, ())}
    # Parsed here, so that an error names the option as it was typed.
    for name, option in options_of_kinds().items():
        if name in values and option.parse is not None:
            values[name] = option.parse(values[name])
    return Conversion(
        source=source,
        destination=where,
        kind=kind,
        options=values,
        splits=Splits.parse(split) if split else None,
        shuffle=Shuffle(seed, memory) if is_shuffled else None,
        skips=on_error == "skip",
        workers=workers,
        storage_options=storage_options,
        memory=Memory(memory),
    )


def _on_ray() -> Any:
    try:
        from streamrec.adapters.ray import convert_on_ray
    except ImportError:
        from streamrec.suggestions import install

        raise click.UsageError(f"--engine ray needs Ray; {install('ray')}") from None
    return convert_on_ray


def _facts(split: SplitPlan, shard_size: int | None) -> dict[str, Any]:
    from streamrec.masking import masked

    shards = split.shards
    if shards is None and shard_size is not None and split.bytes is not None:
        # About: a record is never divided, so the true number may be larger.
        shards = max(1, -(-split.bytes // shard_size))
    return {
        "name": split.name,
        "template": masked(split.template),
        "records": split.records,
        "was_complete": split.was_complete,
        "bytes": split.bytes,
        "shards": shards,
    }


def _lines(facts: dict[str, Any], task: tuple[int, int]) -> list[str]:
    from streamrec.report.words import size

    lines = [f"skipped: {error}" for error in facts["errors"][:LISTED]]
    if facts["skipped"]:
        many = "records were" if facts["skipped"] > 1 else "record was"
        lines.append(f"{facts['skipped']:,} {many} skipped")
    for split in facts["splits"]:
        line = dataset_line(split)
        if facts["dry_run"]:
            line += f", {size(split['bytes'] or 0)}, about {split['shards']:,} shards"
        lines.append(line)
    if facts["dry_run"]:
        return [*lines, "nothing was written"]
    return lines + next_line([split["template"] for split in facts["splits"]], task)
