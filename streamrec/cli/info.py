"""``streamrec info``: what shards hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streamrec.cli.options import json_option, shard_options
from streamrec.cli.printing import print_json, progress_bar

if TYPE_CHECKING:
    from streamrec.datasets.survey import Survey


@click.command()
@click.option(
    "--scan", is_flag=True, help="Read every byte to count the records, of large data too."
)
@json_option
@shard_options
def info(
    *,
    urls: tuple[str, ...],
    scan: bool,
    max_record_bytes: int | None,
    storage_options: dict[str, Any],
    as_json: bool,
) -> None:
    """Tell what shards hold: bytes, records, compression, features.

    Up to 64 MB are read wholly and their records counted. Of more, a sample of eight shards at most
    is read, and the number of records is estimated from its mean size, unless --scan is given. The
    features are inferred from the first records that are read, and ready to paste.
    """
    from streamrec.datasets.survey import survey
    from streamrec.flow.bridge import Bridge

    with Bridge() as loop, progress_bar("bytes") as progress:
        found = loop.call(
            survey(urls, storage_options, scan=scan, largest=max_record_bytes, progress=progress)
        )
    if as_json:
        print_json(found.to_dict())
    else:
        click.echo(_text(found))


def _text(found: Survey) -> str:
    from streamrec.formats.examples.descriptions import as_python
    from streamrec.report.words import size

    facts = {
        "shards": _shards(found),
        "bytes": f"{found.bytes:,} ({size(found.bytes)})",
        "records": _records(found),
        "compression": found.compression,
        "kernel": found.kernel,
    }
    lines = [f"{name:<13}{value}" for name, value in facts.items()]
    if found.features is not None:
        lines += ["", f"# from {found.looked_at:,} records", as_python(found.features)]
    if found.note:
        lines += ["", f"note: {found.note}"]
    return "\n".join(lines)


def _shards(found: Survey) -> str:
    names = found.shards if len(found.shards) < 3 else (found.shards[0], found.shards[-1])
    return f"{len(found.shards):,}: {(', ' if len(found.shards) == 2 else ' ... ').join(names)}"


def _records(found: Survey) -> str:
    if found.estimated:
        return f"about {found.records:,}, estimated from a sample (--scan counts them)"
    return f"{found.records:,}"
