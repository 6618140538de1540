"""``streamrec info`` and ``cat``: what is in shards, and records as JSON lines."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

import click

from streamrec.cli.options import (
    WholeNumber,
    debug_option,
    json_option,
    local_files,
    record_option,
    refuse_unused,
    shard_options,
    storage_option,
    stream_options,
)
from streamrec.cli.printing import print_json, progress_bar
from streamrec.cli.which import stream_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from streamrec.config import DatasetSettings
    from streamrec.datasets.survey import PlacedRecord, Survey
    from streamrec.measure.shuffling import Mixing
    from streamrec.streams.sources import TFDSInfo

MOST_LINE = 2000
"""The characters of a line about a folder."""
MOST_LABELS = 10
"""The most names of classes that are printed of one feature."""


@click.command()
@click.argument("urls", metavar="[URL...]", nargs=-1, shell_complete=local_files)
@click.option(
    "--scan", is_flag=True, help="Read every byte to count the records, even of large data."
)
@click.option(
    "--shuffle",
    "of_shuffle",
    is_flag=True,
    help="Tell how well the stream of --set mixes the shards, from their index alone.",
)
@click.option(
    "--order",
    type=click.File("rb"),
    metavar="FILE",
    help="With --shuffle: measure this order of an epoch; each line is SHARD:RECORD, or a "
    "record's number.",
)
@click.option(
    "--world-size",
    type=WholeNumber(1),
    default=1,
    show_default=True,
    help="With --shuffle: number of ranks, whose batches together are one.",
)
@stream_options
@json_option
@record_option
@storage_option
@debug_option
def info(
    *,
    urls: tuple[str, ...],
    scan: bool,
    of_shuffle: bool,
    order: IO[bytes] | None,
    world_size: int,
    config: Path | None,
    dataset: str | None,
    changes: dict[str, Any],
    max_record_bytes: int | None,
    storage_options: dict[str, Any],
    as_json: bool,
) -> None:
    """Tell what shards hold: bytes, records, compression, features.

    Up to 64 MB in up to 1,000 shards are read wholly and their records counted. Of more, eight
    shards at most are sampled, and the number of records is estimated from that, unless --scan is
    given. The features are inferred from the first records that are read, and ready to paste.

    If URL is the folder of one version of a TFDS dataset, its documents tell its splits and
    features, and no shard is read.

    With --shuffle, no shard is read. URL, --config and --set give the stream: the source, index,
    batch_size, shuffle, seed and the other settings.
    """
    if of_shuffle:
        refuse_unused("with --shuffle", "scan", "max_record_bytes")
        stream = urls, config, dataset, changes, storage_options
        mixing = _mixing(order, world_size, *stream)
        click.echo(_mixing_text(mixing)) if not as_json else print_json(vars(mixing))
        return
    refuse_unused("without --shuffle", "order", "world_size", "config", "dataset", "changes")
    if not urls:
        raise click.UsageError("there are no shards; give a URL")
    if len(urls) == 1 and (folder := _folder(urls[0], storage_options)) is not None:
        refuse_unused("on a folder of TFDS, which says what it holds", "scan", "max_record_bytes")
        click.echo(_folder_text(folder)) if not as_json else print_json(_folder_dict(folder))
        return
    survey = _survey(urls, storage_options, scan=scan, largest=max_record_bytes)
    click.echo(_text(survey)) if not as_json else print_json(survey.to_dict())


def _folder(url: str, storage_options: Mapping[str, Any]) -> TFDSInfo | None:
    """Return the facts about a TFDS folder; ``None``: the URL names something else."""
    from streamrec.errors import ObjectNotFound
    from streamrec.stores.base.source_text import is_pattern
    from streamrec.streams.sources import tfds_info

    # A shard's name is not asked for a document below it.
    if is_pattern(url) or "tfrecord" in url.rstrip("/").rpartition("/")[2]:
        return None
    try:
        return tfds_info(url, storage_options=storage_options)
    except ObjectNotFound as error:
        if (error.url or "").endswith("/features.json"):
            raise
        return None


def _folder_dict(folder: TFDSInfo) -> dict[str, Any]:
    from streamrec.formats.examples.descriptions import as_python, describe

    features = dict(folder.features)
    plain = {"features": describe(features), "python": as_python(features)}
    return vars(folder) | plain


def _folder_text(folder: TFDSInfo) -> str:
    from streamrec.formats.examples.descriptions import as_python
    from streamrec.report.words import RECORDS, clip, quantity

    config = f"/{folder.config}" if folder.config else ""
    facts = [("dataset", f"{folder.name}{config} {folder.version}")]
    for name, records in folder.splits.items():
        facts.append(("split", f"{name}: {quantity(records, *RECORDS)}"))
    for name, labels in folder.labels.items():
        facts.append(("labels", f"{name}: {_few(labels)}"))
    # The folder's own texts may be anything.
    lines = [f"{what:<13}{clip(text, MOST_LINE)}" for what, text in facts]
    refused = [clip(f"# {name!r} {why}", MOST_LINE) for name, why in folder.refused.items()]
    return "\n".join([*lines, "", as_python(folder.features), *refused])


def _few(labels: Sequence[str]) -> str:
    """Return the names of classes, the first ones of many."""
    shown = ", ".join(labels[:MOST_LABELS])
    return shown if len(labels) <= MOST_LABELS else f"{shown}, ... ({len(labels):,} in all)"


def _survey(
    urls: Sequence[str], storage_options: Mapping[str, Any], *, scan: bool, largest: int | None
) -> Survey:
    from streamrec.datasets.survey import survey
    from streamrec.flow.bridge import Bridge

    with Bridge() as loop, progress_bar("bytes") as progress:
        return loop.call(
            survey(urls, storage_options, scan=scan, largest=largest, progress=progress)
        )


def _text(survey: Survey) -> str:
    from streamrec.formats.examples.descriptions import as_python
    from streamrec.report.words import size

    facts = {
        "shards": _shards(survey),
        "bytes": f"{survey.bytes:,} ({size(survey.bytes)})",
        "records": _records(survey),
        "compression": survey.compression,
        "kernel": survey.kernel,
    }
    lines = [f"{name:<13}{value}" for name, value in facts.items()]
    if survey.features is not None:
        lines += ["", f"# from {survey.looked_at:,} records", as_python(survey.features)]
    if survey.note:
        lines += ["", f"note: {survey.note}"]
    return "\n".join(lines)


def _shards(survey: Survey) -> str:
    # Thousands of names would hide all else.
    names = survey.shards if len(survey.shards) < 3 else (survey.shards[0], survey.shards[-1])
    return f"{len(survey.shards):,}: {(', ' if len(survey.shards) == 2 else ' ... ').join(names)}"


def _records(survey: Survey) -> str:
    if survey.estimated:
        return f"about {survey.records:,}, estimated from a sample (--scan counts them)"
    return f"{survey.records:,}"


def _mixing(
    order: IO[bytes] | None,
    world_size: int,
    urls: Sequence[str],
    config: Path | None,
    dataset: str | None,
    changes: Mapping[str, Any],
    storage_options: Mapping[str, Any],
) -> Mixing:
    """Return how well a stream mixes, or the order in a file."""
    from streamrec.measure.shuffling import mixing_of, read_order
    from streamrec.streams.which import epoch_shards

    if order is not None and not urls and config is None:
        refuse_unused("with --order alone", "dataset", "storage_options")
        batch_size = _batch_size(changes) * world_size
        return mixing_of(read_order(order), batch_size)
    stream = urls, config, dataset, changes, storage_options
    if order is None:
        return _stream_mixing(stream_settings(*stream), world_size)
    # Of the stream only its index counts, which says how many records each shard has.
    epoch = epoch_shards(stream_settings(*stream, index=True), world_size)
    return mixing_of(read_order(order, epoch.population), epoch.batch_size)


def _batch_size(changes: Mapping[str, Any]) -> int:
    """Return the batch size for an order that is measured without a dataset."""
    from streamrec.config.arguments import count_of

    if others := sorted(changes.keys() - {"batch_size"}):
        raise click.UsageError(
            f"--set {others[0]} has no effect on the order of a file; leave it out"
        )
    if "batch_size" not in changes:
        raise click.UsageError("there is no batch size; give that of the run, --set batch_size=N")
    return count_of(changes["batch_size"], "batch_size", 1)


def _stream_mixing(settings: DatasetSettings, world_size: int) -> Mixing:
    from streamrec.measure.shuffling import MixingMeter
    from streamrec.streams.which import epoch_shards

    epoch = epoch_shards(settings, world_size)
    meter = MixingMeter(epoch.population, epoch.batch_size)
    # The orders of 10^9 records take minutes.
    with progress_bar("batches") as progress:
        for part in epoch.parts:
            meter.add(part)
            progress("computing the order", meter.batches, epoch.steps)
    return meter.mixing()


def _mixing_text(mixing: Mixing) -> str:
    facts = {
        "records": f"{mixing.records:,} of {mixing.shards:,} shards",
        "batches": f"{mixing.batches:,} of {mixing.batch_size:,} records",
        "chi-square": f"{mixing.chi_square:.4g} (a perfect shuffle has 1, and "
        f"batches of one shard {mixing.most_chi_square:,.4g})",
        "run length": f"{mixing.run_length:.4g} (a perfect shuffle has "
        f"{mixing.perfect_run_length:.4g})",
    }
    return "\n".join(f"{name:<13}{value}" for name, value in facts.items())


@click.command(short_help="Print records as JSON lines, in the order of the shards.")
@click.option("-n", "count", type=WholeNumber(min=1), help="The most records to print.")
@click.option("--raw", is_flag=True, help="Print each record as a string of base64, not parsed.")
@click.option("--features", metavar="NAME,...", help="Print these features only, in this order.")
@click.option(
    "--offset",
    type=WholeNumber(min=0),
    default=0,
    metavar="BYTES",
    help="Begin at the record whose frame begins at this byte, which messages then call record 0; "
    "for one shard only.",
)
@click.option(
    "--record",
    "skip",
    type=WholeNumber(min=0),
    default=0,
    metavar="K",
    help="Begin at this record, counted from 0; the records before it are read, too.",
)
@click.option("--check-crc/--no-check-crc", default=True, help="Check every record's CRCs. [on]")
@click.option(
    "--skip-corrupt",
    is_flag=True,
    help="Leave damaged records out, and name them on standard error.",
)
@shard_options
def cat(*, raw: bool, features: str | None, **selected: Any) -> None:
    """Print records as JSON lines, in the order in which the shards are named.

    URL names a shard, or is a glob, a {00000..00127} range or name@128, of s3, http(s), file or a
    plain path. The shards of one pattern are sorted by name; a shard that is named twice is printed
    twice.

    A record is parsed as a tf.train.Example, and becomes an object with a list for each feature.
    Integers and floats are numbers; a float is the shortest number that reads back as the same
    float32. Numbers that JSON does not have are "NaN", "Infinity" and "-Infinity". Byte strings
    that are UTF-8 without control characters (except tabs and line ends) are strings, others are
    {"base64": "..."}. A feature without a kind of value is null. A SequenceExample is an object
    with a "context", which is like an Example, and "feature_lists", with a list for each step.

    The origin of a batch leads here: stream.shards[batch.origin.shards[row]] is the URL, without
    its signature, and batch.origin.records[row] is the number for --record. An error names the
    offset for --offset.
    """
    from streamrec.cli.json_form import Examples, raw_line
    from streamrec.datasets.survey import Selection, groups

    selection = Selection(**selected)
    if raw and features is not None:
        raise click.UsageError("--raw prints records unparsed: leave --features out")
    if selection.offset and selection.skip:
        raise click.UsageError("--offset and --record both say where to begin: give one")
    if selection.skip_corrupt and not selection.check_crc:
        raise click.UsageError("--skip-corrupt needs the CRCs: leave --no-check-crc out")
    examples = Examples(None if features is None else features.split(","))
    for group in groups(selection):
        _print_lines(group, raw_line if raw else examples.line)
    # At the end: a feature that the first records lack may come later.
    examples.finish()


def _print_lines(group: Iterable[PlacedRecord], form: Callable[[PlacedRecord], str]) -> None:
    """Print a line for each record, all at once, even if a later record cannot be printed."""
    lines = []
    try:
        for record in group:
            lines.append(form(record))  # noqa: PERF401 - those before a failure are kept
    finally:
        if lines:
            click.echo("\n".join(lines).encode())  # JSON is UTF-8, whatever the terminal is
