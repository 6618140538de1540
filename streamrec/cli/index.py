"""``streamrec index`` and ``merge-index``: the index of a dataset, and its last step of writing."""

from __future__ import annotations

from typing import Any

import click

from streamrec.cli.options import (
    debug_option,
    json_option,
    local_files,
    shard_options,
    storage_option,
)
from streamrec.cli.printing import print_json, progress_bar


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
@json_option
@shard_options
def index(*, as_json: bool, **options: Any) -> None:
    """Write the index of a dataset, for index=True.

    Reads every byte of the shards, several at a time, and checks every CRC. If a shard is damaged,
    no index is written. The index is one small object, with 20 bytes for each chunk; patterns for
    shards do not match its name. Write it again whenever a shard has changed.
    """
    facts = _write(**options)
    if as_json:
        print_json(facts)
    else:
        click.echo(_text(facts))


def _write(
    urls: tuple[str, ...],
    output: str | None,
    chunk_size: str,
    max_record_bytes: int | None,
    storage_options: dict[str, Any],
) -> dict[str, Any]:
    """Check the shards, write their index, and return the facts to print."""
    from streamrec.config.plain_values import byte_size
    from streamrec.datasets.verify import check, index_of
    from streamrec.flow.bridge import Bridge
    from streamrec.formats.shards.index import index_places
    from streamrec.masking import masked
    from streamrec.stores.folder import write_object

    chunk_bytes = byte_size("--chunk-size", chunk_size)
    with Bridge() as loop, progress_bar("bytes") as progress:
        checking = check(
            urls,
            storage_options,
            chunk_bytes=chunk_bytes,
            largest=max_record_bytes,
            progress=progress,
        )
        # All of it is read before anything is written: an index of damaged shards would hide the
        # damage.
        reports = loop.call(checking)
    written = index_of(reports)
    data, url = written.encode(), output or index_places([report.url for report in reports])[0]
    write_object(url, data, storage_options)
    size = sum(report.size for report in reports)
    return {
        "url": masked(url),
        "bytes": len(data),
        "shards": len(reports),
        "shard_bytes": size,
        "records": written.records,
        "chunks": len(written.chunks().begin),
        "digest": written.digest(),
    }


def _text(facts: dict[str, Any]) -> str:
    from streamrec.report.words import size

    return (
        "{url}: {shards:,} shards, {records:,} records, {chunks:,} chunks; {bytes:,} bytes for "
    ).format(**facts) + size(facts["shard_bytes"])


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
    from streamrec.masking import masked

    for template in dest:
        merge_shards.merge_index(template, storage_options=storage_options)
        click.echo(f"{masked(template)}: complete")
