"""``streamrec demo``: the whole main job on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streamrec.cli.options import debug_option, json_option
from streamrec.cli.printing import ending_with, print_json, progress_bar

if TYPE_CHECKING:
    from streamrec.demo import Summary


@click.command(short_help="Run a whole training job on this machine.")
@json_option
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Work in this new directory, and leave the shards, the configuration and the logs there.",
)
@debug_option
def demo(*, as_json: bool, keep: Path | None) -> None:
    """Run a whole training job on this machine; nothing is needed, and nothing is left.

    It writes real pictures into shards, starts a loopback object store with 40 ms latency and a
    feeder, and streams two shuffled epochs to two ranks, one of which is stopped in the middle and
    resumed from its saved state. It exits with 0 if every record arrived exactly once an epoch.
    """
    from streamrec import demo as job

    with progress_bar("records") as bar:
        # With --json standard output has the object alone.
        summary = job.run(_silent if as_json else click.echo, bar, keep=keep)
    # The demo is a test of an installation, too.
    with ending_with(0 if summary.ok else 1):
        print_json(asdict(summary)) if as_json else click.echo(_text(summary))


def _silent(_: str) -> None:
    """Print nothing."""


def _text(summary: Summary) -> str:
    from streamrec.report.words import rate, size

    verdict = "every record arrived exactly once an epoch" if summary.ok else "this must not happen"
    return "\n".join(
        [
            f"streamed {summary.records:,} records, {size(summary.bytes)}, in {summary.epochs} "
            f"shuffled epochs to {summary.ranks} ranks",
            f"stopped a rank after step {summary.resumed_at_step}, and resumed it from its state",
            f"lost {summary.lost}, repeated {summary.repeated}, damaged {summary.damaged}: "
            f"{verdict}",
            "",
            f"time to first batch  {summary.first_batch_seconds:.2f} s",
            f"throughput           {rate(1e6 * summary.megabytes_per_second)}, "
            f"{summary.records_per_second:,.0f} records/s",
            f"all of it            {summary.seconds:.1f} s",
        ]
    )
