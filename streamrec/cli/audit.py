"""The check of an audit log, for ``streamrec which --audit``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from streamrec.cli.verify import FAILED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from streamrec.streams.audit_check import AuditReport, RankReport

COUNTS = (
    "objects",
    "nbytes",
    "steps",
    "computed",
    "read",
    "unchecked",
    "skipped",
    "masked",
    "again",
)
"""The figures of a rank, as JSON has them."""


def print_audit(
    address: str, changes: Mapping[str, Any], rank: int | None, *, reads: bool, as_json: bool
) -> None:
    """Check an audit log, and print what was found; exit with 1 unless it agrees.

    Args:
        address: The log's directory.
        changes: Settings that replace those of the log.
        rank: The only rank to check; ``None``: all.
        reads: Read the shards again where the records of a step cannot be computed.
        as_json: Print JSON lines.
    """
    from streamrec.streams.audit_check import check_audit

    options = changes.get("storage_options")
    report = check_audit(address, changes, storage_options=options, rank=rank, reads=reads)
    lines = _json_lines(report) if as_json else _lines(report)
    click.echo("\n".join(lines).encode())
    if not report.agrees:
        click.get_current_context().exit(FAILED)


def _json_lines(report: AuditReport) -> Iterator[str]:
    for one in report.ranks:
        counts = {name: getattr(one, name) for name in COUNTS}
        named = {"rank": one.rank, "world_size": one.world_size, **counts, "spans": one.spans}
        yield json.dumps({**named, "faults": one.faults}, ensure_ascii=False)
    yield json.dumps({"gaps": report.gaps, "agrees": report.agrees}, ensure_ascii=False)


def _lines(report: AuditReport) -> Iterator[str]:
    for one in report.ranks:
        yield f"rank {one.rank} of {one.world_size}: {', '.join(_facts(one))}"
    for one in report.ranks:
        yield from one.faults
    yield from report.gaps
    unchecked = sum(one.unchecked for one in report.ranks)
    if not report.agrees:
        yield "the log does not agree with the settings, or is not complete"
    elif unchecked:
        yield f"nothing is missing, but {unchecked} steps were not compared; add --read for that"
    else:
        yield "all steps in the log are those of the settings"


def _facts(one: RankReport) -> Iterator[str]:
    """Yield what the log has of a rank."""
    from streamrec.report.words import count_of

    yield count_of(one.steps, "step", "steps")
    if one.spans:
        yield f"from {min(one.spans)[0]} to {max(end for _, end in one.spans) - 1}"
    told = {
        "as computed": one.computed,
        "as read again": one.read,
        "not compared": one.unchecked,
        "skipped": one.skipped,
        "delivered again": one.again,
    }
    yield from (f"{count} {what}" for what, count in told.items() if count)
    if one.masked:
        yield count_of(one.masked, "masked record", "masked records")
    if one.faults:
        yield count_of(len(one.faults), "fault", "faults")
