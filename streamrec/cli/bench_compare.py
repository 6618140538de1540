"""``streamrec bench compare``: two benchmarks, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streamrec.cli.bench_measuring import write_report
from streamrec.cli.completion import local_files
from streamrec.cli.options import debug_option, json_option, written_file
from streamrec.cli.printing import print_json

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("before", shell_complete=local_files)
@click.argument("after", shell_complete=local_files)
@written_file("--html", "Write the comparison as one file of HTML.")
@json_option
@debug_option
def compare(*, before: str, after: str, html: Path | None, as_json: bool) -> None:
    """Compare two files that `streamrec bench --json` wrote."""
    from rich.console import Console

    from streamrec.measure.comparison import compare as compare_figures
    from streamrec.measure.comparison import plain
    from streamrec.measure.files import read_figures
    from streamrec.measure.html import render_comparison_html
    from streamrec.measure.text import render_comparison

    found = compare_figures(read_figures(before), read_figures(after), (before, after))
    if as_json:
        print_json(plain(found))
    else:
        Console(highlight=False).print(render_comparison(found))
    if html is not None:
        write_report(html, render_comparison_html(found))
