"""``streamrec verify``: check every byte, and name every fault."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streamrec.cli.options import json_option, shard_options
from streamrec.cli.printing import megabytes, print_json, progress_bar
from streamrec.masking import masked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.shard_tools.verify import ShardReport

FAILED = 1


@click.command()
@json_option
@shard_options
@click.pass_context
def verify(
    context: click.Context,
    *,
    urls: tuple[str, ...],
    max_record_bytes: int | None,
    storage_options: dict[str, Any],
    as_json: bool,
) -> None:
    """Read every byte of the shards, check every CRC, and name every fault.

    Behind damage it goes on with the next record that is intact, and tells how many bytes are lost
    with it; of a compressed stream, also how many cannot be decompressed. Exit code 1 if there is a
    fault.
    """
    from streamrec.flow.bridge import Bridge
    from streamrec.shard_tools.verify import check

    with Bridge() as loop, progress_bar("bytes") as progress:
        reports = loop.call(
            check(urls, storage_options, largest=max_record_bytes, progress=progress)
        )
    if as_json:
        damaged = [report.to_dict() for report in reports if report.faults]
        print_json(_sums(reports) | {"damaged": damaged})
    else:
        click.echo("\n".join(_lines(reports)))
    if any(report.faults for report in reports):
        context.exit(FAILED)


def _sums(reports: Sequence[ShardReport]) -> dict[str, Any]:
    return {
        "shards": len(reports),
        "bytes": sum(report.size for report in reports),
        "records": sum(report.records for report in reports),
        "faults": sum(len(report.faults) for report in reports),
    }


def _lines(reports: Sequence[ShardReport]) -> list[str]:
    lines = []
    for report in reports:
        lines += [str(fault) for fault in report.faults]
        if report.lost:
            lines.append(f"{masked(report.url)}: {report.lost:,} bytes are lost with it")
        if report.unread:
            lines.append(f"{masked(report.url)}: {report.unread:,} bytes cannot be decompressed")
    sums = _sums(reports)
    found = f"{sums['faults']:,} faults" if sums["faults"] else "no fault"
    return [
        *lines,
        f"{sums['shards']:,} shards, {sums['records']:,} records, {megabytes(sums['bytes'])}: "
        f"{found}",
    ]
