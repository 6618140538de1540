"""``streamrec serve``: the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streamrec.cli.options import debug_option, json_option
from streamrec.cli.printing import print_json

if TYPE_CHECKING:
    from streamrec.feeder.daemon import Bound


@click.command()
@click.argument("config", metavar="CONFIG.toml")
@click.option("--check-config", is_flag=True, help="Print the effective configuration as JSON.")
@click.option("--until-eof", is_flag=True, help="End when standard input does, too.")
@json_option
@debug_option
def serve(*, config: str, check_config: bool, until_eof: bool, as_json: bool) -> None:
    """Serve the datasets of a configuration to training processes.

    When all datasets are open it prints where it listens. SIGTERM and SIGINT end it: what is under
    way is sent, for server.grace seconds at most; a second signal cuts that short.
    """
    from streamrec.cli.configuration import check, effective
    from streamrec.config import load_daemon

    settings = load_daemon(config)
    check(settings)
    if check_config:
        print_json(effective(settings))
        return
    from streamrec.cli.service import run

    run(settings, lambda bound: _announce(bound, list(settings.datasets), as_json), until_eof)


def _announce(bound: Bound, datasets: list[str], as_json: bool) -> None:
    """Print the addresses on which the daemon listens, on one line: others may wait for it."""
    import json

    if as_json:
        click.echo(json.dumps({"listen": bound.feeder, "status": bound.status}))
        return
    click.echo(f"streamrec serves {', '.join(datasets)} at {', '.join(bound.feeder)}")
    if bound.status:
        click.echo(f"health and metrics at http://{bound.status}")
