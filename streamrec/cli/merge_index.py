"""``streamrec merge-index``: complete the datasets that several tasks wrote."""

from __future__ import annotations

from typing import Any

import click

from streamrec.cli.options import debug_option, local_files, storage_option


@click.command("merge-index")
@click.argument("dest", metavar="DEST...", nargs=-1, required=True, shell_complete=local_files)
@storage_option
@debug_option
def merge_index(*, dest: tuple[str, ...], storage_options: dict[str, Any]) -> None:
    """Complete the datasets that several tasks wrote.

    Run it when write or reshard has ended with every --task I/N. DEST is each dataset's template,
    as the tasks had it; with splits, that of each split, which the tasks print. It names a task
    that is missing. Where all is complete already, nothing happens.
    """
    from streamrec.datasets import merge_shards
    from streamrec.masking import masked

    for template in dest:
        merge_shards.merge_index(template, storage_options=storage_options)
        click.echo(f"{masked(template)}: complete")
