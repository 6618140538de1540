"""``streamrec verify``, ``index`` and ``merge-index``: check every byte, and write the index."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from streamrec.cli.options import (
    debug_option,
    exclude_option,
    json_option,
    local_files,
    shard_options,
    storage_option,
)
from streamrec.cli.printing import ending_with, print_json, progress_bar
from streamrec.masking import masked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from streamrec.datasets.compare import Comparison
    from streamrec.datasets.indexes import IndexCheck
    from streamrec.datasets.verify import ShardReport
    from streamrec.formats.shards.index import Index

FAILED = 1


@click.command(short_help="Read every byte, check every CRC, and name every fault.")
@click.option(
    "--against",
    "others",
    metavar="URL",
    multiple=True,
    shell_complete=local_files,
    help="Compare the records with those of other shards, one by one. Repeatable. Stops at damage.",
)
@exclude_option
@click.option("--any-order", is_flag=True, help="With --against: the records may be in any order.")
@json_option
@shard_options
def verify(
    *,
    urls: tuple[str, ...],
    max_record_bytes: int | None,
    storage_options: dict[str, Any],
    as_json: bool,
    others: tuple[str, ...],
    any_order: bool,
    exclude: str | None,
) -> None:
    """Read every byte of the shards, check every CRC, and name every fault.

    After damage it continues with the next intact record, and says how many bytes are lost; in a
    compressed stream, also how many cannot be decompressed. If an index stands beside the shards,
    each number in it that the bytes contradict is a fault, too. The exit code is 1 if there is a
    fault, or with --against a difference. --exclude LIST compares with the other shards without
    the records that the list names, by the names of those shards.
    """
    if any_order and not others:
        raise click.UsageError("--any-order is about two datasets: give --against, too")
    if exclude is not None and not others:
        raise click.UsageError("--exclude is about the shards of --against: give --against, too")
    if others:
        how = storage_options, max_record_bytes
        comparison = _compare(urls, others, exclude, *how, any_order=any_order)
        # As `diff` does: what differs is printed, and is no error.
        with ending_with(FAILED if comparison.differences else 0):
            print_json(asdict(comparison)) if as_json else click.echo(_differences(comparison))
        return
    from streamrec.datasets.indexes import IndexCheck
    from streamrec.datasets.verify import check
    from streamrec.flow.bridge import Bridge

    index = IndexCheck()
    with Bridge() as loop, progress_bar("bytes") as progress:
        checking = check(
            urls, storage_options, largest=max_record_bytes, index=index, progress=progress
        )
        reports = loop.call(checking)
    damaged = [report for report in reports if report.faults]
    with ending_with(FAILED if index.faults or damaged else 0):
        if as_json:
            plain = [report.to_dict() for report in damaged]
            print_json(_sums(reports) | {"damaged": plain, "index": index.to_dict()})
        else:
            click.echo("\n".join([*_lines(reports), *_index_lines(index)]))


def _compare(
    urls: tuple[str, ...],
    others: tuple[str, ...],
    exclude: str | None,
    storage_options: dict[str, Any],
    max_record_bytes: int | None,
    *,
    any_order: bool,
) -> Comparison:
    from streamrec.datasets.compare import compare, compare_in_any_order
    from streamrec.datasets.shard_source import ShardSource

    with progress_bar("bytes") as progress:
        one = ShardSource.find(urls, storage_options, max_record_bytes, progress=progress)
        two = ShardSource.find(others, storage_options, max_record_bytes, exclude, progress)
        return (compare_in_any_order if any_order else compare)(one, two, progress)


def _differences(comparison: Comparison) -> str:
    equal = "differences" if comparison.differences else "equal"
    sums = f"{comparison.records:,} records against {comparison.others:,}: {equal}"
    return "\n".join([*comparison.differences, sums])


def _sums(reports: Sequence[ShardReport]) -> dict[str, Any]:
    return {
        "shards": len(reports),
        "bytes": sum(report.size for report in reports),
        "records": sum(report.records for report in reports),
        "faults": sum(len(report.faults) for report in reports),
    }


def _lines(reports: Sequence[ShardReport]) -> list[str]:
    from streamrec.report.words import RECORDS, quantity, size

    lines = []
    for report in reports:
        lines += [str(fault) for fault in report.faults]
        url = masked(report.url)
        if report.lost:
            lines.append(f"{url}: {report.lost:,} of its bytes are not in an intact record")
        if report.unread:
            lines.append(f"{url}: {report.unread:,} bytes cannot be decompressed")
        if report.is_cut:
            lines.append(f"{url}: the rest is missing; only an index tells of how many records")
    if any(report.lost or report.unread for report in reports):
        lines.append('with on_corrupt="skip" a stream goes on without what is damaged')
    sums = _sums(reports)
    counts = quantity(sums["shards"], "shard", "shards"), quantity(sums["records"], *RECORDS)
    return [*lines, f"{', '.join(counts)}, {size(sums['bytes'])}: {_count(sums['faults'])}"]


def _index_lines(index: IndexCheck) -> list[str]:
    if index.url is None:
        return []
    return [*map(str, index.faults), f"{masked(index.url)}: {_count(len(index.faults))}"]


def _count(faults: int) -> str:
    from streamrec.report.words import quantity

    return quantity(faults, "fault", "faults") if faults else "no fault"


@click.command()
@click.option(
    "--output",
    metavar="URL",
    shell_complete=local_files,
    help="Where to write it; by default beside the shards.",
)
@click.option(
    "--chunk-size",
    metavar="BYTES",
    default="1MiB",
    show_default=True,
    help="Bytes of shard for each entry; 4MiB for tens of terabytes.",
)
@click.option(
    "--key",
    "keys",
    metavar="FEATURE[:TYPE]",
    multiple=True,
    help="Also write which values of this feature, of int64 or bytes, stand in which records.",
)
@click.option(
    "--lengths",
    metavar="FEATURE[:TYPE]",
    multiple=True,
    help="Also write how long this feature is in each record, for balance.",
)
@json_option
@shard_options
def index(*, as_json: bool, **options: Any) -> None:
    """Write the index of a dataset, for index=True.

    Reads every byte of the shards, several at a time, and checks every CRC. If a shard is damaged,
    no index is written. The index is one small object, with 20 bytes for each chunk; patterns for
    shards do not match its name. Write it again whenever a shard has changed.
    --key writes a second object beside it, by which exclude and which --find take values;
    --lengths writes one by which balance deals the rows of a batch to ranks. TYPE is int64, bytes
    or, for --lengths, float32: it is needed where the first records have no value of the feature.
    """
    split = click.get_current_context().params["split"] or ""
    if split == "all" or {*split} & {*"+["}:
        raise click.UsageError(
            f"an index describes one whole split, and --split is {split}; write one for each split"
        )
    facts = _write_index(**options)
    if as_json:
        print_json(facts)
    else:
        click.echo(_index_text(facts))


def _write_index(
    urls: tuple[str, ...],
    output: str | None,
    chunk_size: str,
    keys: tuple[str, ...],
    lengths: tuple[str, ...],
    max_record_bytes: int | None,
    storage_options: dict[str, Any],
) -> dict[str, Any]:
    """Check the shards, write their index, and return the facts to print."""
    from streamrec.config.plain_values import byte_size
    from streamrec.datasets.indexes import COUNTED_TYPES, check_replaced, typed_feature
    from streamrec.datasets.verify import check, index_of
    from streamrec.flow.bridge import Bridge
    from streamrec.formats.shards.index_names import index_places
    from streamrec.formats.shards.key_index import TYPES
    from streamrec.stores.blocking import write_object

    chunk_bytes = byte_size("--chunk-size", chunk_size)
    types, counted = (
        dict(typed_feature(urls, name, kinds, storage_options=storage_options) for name in names)
        for names, kinds in ((keys, TYPES), (lengths, COUNTED_TYPES))
    )
    with Bridge() as loop, progress_bar("bytes") as progress:
        checking = check(
            urls,
            storage_options,
            chunk_bytes=chunk_bytes,
            largest=max_record_bytes,
            keys=types,
            lengths=counted,
            progress=progress,
        )
        # All of it is read before anything is written: an index of damaged shards would hide the
        # damage.
        reports = loop.call(checking)
    written = index_of(reports)
    data, url = written.encode(), output or index_places([report.url for report in reports])[0]
    if output is None:
        check_replaced(url, written, storage_options)
    write_object(url, data, storage_options)
    beside = _write_beside(url, _beside(written, reports, types, counted), storage_options)
    return {"url": masked(url), "bytes": len(data), **_facts(written, reports), **beside}


def _facts(index: Index, reports: Sequence[ShardReport]) -> dict[str, Any]:
    """Return what an index says of its shards, to print."""
    return {
        "shards": len(reports),
        "shard_bytes": sum(report.size for report in reports),
        "records": index.records,
        "chunks": len(index.chunks().begin),
        "digest": index.digest(),
    }


def _write_beside(
    index: str,
    objects: Iterable[tuple[str, str, bytes, dict[str, Any]]],
    storage_options: dict[str, Any],
) -> dict[str, list[dict[str, Any]]]:
    """Write what stands beside an index; arguments as :func:`_beside` yields them."""
    from streamrec.formats.shards.index_names import KEYS, LENGTHS
    from streamrec.formats.shards.key_index import key_url
    from streamrec.stores.blocking import write_object

    written: dict[str, list[dict[str, Any]]] = {KEYS: [], LENGTHS: []}
    for feature, ending, data, facts in objects:
        url = key_url(index, feature, ending)
        write_object(url, data, storage_options)
        written[ending].append(
            {"feature": feature, "url": masked(url), **facts, "bytes": len(data)}
        )
    return {"keys": written[KEYS], "lengths": written[LENGTHS]}


def _beside(
    index: Index, reports: Sequence[ShardReport], types: Mapping[str, str], counted: Iterable[str]
) -> Iterator[tuple[str, str, bytes, dict[str, Any]]]:
    """Yield the objects beside an index: the feature, the name's end, the bytes and the facts."""
    from streamrec.datasets.indexes import key_indexes, length_indexes
    from streamrec.formats.shards.index_names import KEYS, LENGTHS

    for key in key_indexes(index, [report.keys for report in reports], types):
        yield key.feature, KEYS, key.encode(), {"values": len(key.records)}
    for one in length_indexes(index, [report.lengths for report in reports], counted):
        lengths = one.records.lengths
        facts = {"longest": int(lengths.max(initial=0)), "values": int(lengths.sum(dtype="i8"))}
        yield one.feature, LENGTHS, one.encode(), facts


def _index_text(facts: dict[str, Any]) -> str:
    from streamrec.report.words import RECORDS, quantity, size

    shards = quantity(facts["shards"], "shard", "shards")
    chunks = quantity(facts["chunks"], "chunk", "chunks")
    counts = f"{shards}, {quantity(facts['records'], *RECORDS)}, {chunks}"
    sizes = f"{facts['bytes']:,} bytes for {size(facts['shard_bytes'])}"
    keys = [
        f"{key['url']}: {quantity(key['values'], 'value', 'values')}; {key['bytes']:,} bytes"
        for key in facts["keys"]
    ]
    lengths = [
        f"{one['url']}: {one['values']:,} in all, {one['longest']:,} at most; "
        f"{one['bytes']:,} bytes"
        for one in facts["lengths"]
    ]
    return "\n".join([f"{facts['url']}: {counts}; {sizes}", *keys, *lengths])


@click.command("merge-index")
@click.argument("dest", metavar="DEST...", nargs=-1, required=True, shell_complete=local_files)
@storage_option
@debug_option
def merge_index(*, dest: tuple[str, ...], storage_options: dict[str, Any]) -> None:
    """Complete the datasets that several tasks wrote.

    Run it when write or reshard has ended with every --task I/N. DEST is the template of a dataset,
    as the tasks were given it; with splits, the template of each split, which the tasks print. An
    error names a task that is missing. A dataset that is complete already stays as it is.
    """
    from streamrec.datasets import merge_shards

    for template in dest:
        merge_shards.merge_index(template, storage_options=storage_options)
        click.echo(f"{masked(template)}: complete")
