"""``streamrec cat``: records as JSON lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streamrec.cli.options import shard_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from streamrec.datasets.survey import PlacedRecord


@click.command(short_help="Print records as JSON lines, in the order of the shards.")
@click.option("-n", "count", type=click.IntRange(min=1), help="The most records to print.")
@click.option("--raw", is_flag=True, help="Print each record as a string of base64, not parsed.")
@click.option("--features", metavar="NAME,...", help="Print these features only, in this order.")
@click.option(
    "--offset",
    type=click.IntRange(min=0),
    default=0,
    metavar="BYTES",
    help="Begin at the record whose frame begins at this byte, which messages then call record 0; "
    "for one shard only.",
)
@click.option(
    "--record",
    "skip",
    type=click.IntRange(min=0),
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
        _print(group, raw_line if raw else examples.line)
    # At the end: a feature that the first records lack may come later.
    examples.finish()


def _print(group: Iterable[PlacedRecord], form: Callable[[PlacedRecord], str]) -> None:
    """Print a line for each record, all at once, even if a later record cannot be printed."""
    lines = []
    try:
        for record in group:
            lines.append(form(record))  # noqa: PERF401 - those before a failure are kept
    finally:
        if lines:
            click.echo("\n".join(lines).encode())  # JSON is UTF-8, whatever the terminal is
