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
        outcome = loop.call(
            survey(urls, storage_options, scan=scan, largest=max_record_bytes, progress=progress)
        )
    if as_json:
        print_json(outcome.to_dict())
    else:
        click.echo(_text(outcome))


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
