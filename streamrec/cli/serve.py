"""``streamrec serve``: the daemon, its log, and its end with standard input."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from typing import TYPE_CHECKING

import click

from streamrec.cli.completion import local_files
from streamrec.cli.options import debug_option, json_option
from streamrec.cli.printing import print_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.config import DaemonSettings
    from streamrec.feeder.daemon import Bound


@click.command()
@click.argument("config", metavar="CONFIG.toml", shell_complete=local_files)
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
    run(settings, lambda bound: _announce(bound, list(settings.datasets), as_json), until_eof)


def _announce(bound: Bound, datasets: list[str], as_json: bool) -> None:
    """Print the addresses on which the daemon listens, on one line: others may wait for it."""
    if as_json:
        click.echo(json.dumps({"listen": bound.feeder, "status": bound.status}))
        return
    click.echo(f"streamrec serves {', '.join(datasets)} at {', '.join(bound.feeder)}")
    if bound.status:
        click.echo(f"health and metrics at http://{bound.status}")


def run(settings: DaemonSettings, ready: Callable[[Bound], None], until_eof: bool) -> None:
    """Serve until a signal, or with ``until_eof`` until standard input ends."""
    from streamrec.feeder import daemon

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    if until_eof:
        threading.Thread(target=_watch_stdin, name="stdin", daemon=True).start()
    daemon.run(settings, ready)


def _watch_stdin() -> None:
    """End this process when standard input ends, with the process that started it."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
