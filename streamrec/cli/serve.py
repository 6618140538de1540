"""``streamrec serve``: the daemon, its log, and its end with standard input."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING

import click

from streamrec.cli.options import debug_option, json_option, local_files, refuse_unused
from streamrec.cli.printing import discard_output, print_json
from streamrec.errors import ConfigError, StreamrecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.config.daemon import DaemonSettings
    from streamrec.feeder.operate.daemon import Bound

log = logging.getLogger("streamrec.feeder")


@click.command()
@click.argument("config", metavar="CONFIG.toml", shell_complete=local_files)
@click.option("--check-config", is_flag=True, help="Print the effective configuration as JSON.")
@click.option(
    "--open", "do_open", is_flag=True, help="With --check-config: open the datasets, too."
)
@click.option("--until-eof", is_flag=True, help="Also end when standard input ends.")
@json_option
@debug_option
def serve(
    *, config: str, check_config: bool, do_open: bool, until_eof: bool, as_json: bool
) -> None:
    """Serve the datasets of a configuration to training processes.

    When it is ready for clients, it prints where it listens. It also names the datasets whose store
    fails, and opens them as soon as their store answers. Environment variables such as
    STREAMREC_SERVER_GRACE override the settings of [server].

    SIGTERM and SIGINT end it: what is under way is sent, for server.grace seconds at most; a second
    signal cuts that short. SIGHUP reloads the configuration, SIGUSR1 logs what it does.
    """
    from streamrec.feeder.operate.configuration import effective, load

    if do_open and not check_config:
        raise click.UsageError("--open needs --check-config; add that, or leave --open out")
    if check_config:
        refuse_unused("beside --check-config", "until_eof")
    settings = load(config)
    if not check_config:
        announce = partial(_announce, datasets=list(settings.datasets), as_json=as_json)
        run(settings, announce, until_eof, lambda: load(config))
        return
    if do_open:
        _check_open(settings)
    else:
        print_json(effective(settings))


def _check_open(settings: DaemonSettings) -> None:
    """Print the configuration and the shards of each dataset; a store that fails is an error.

    Certificates and tokens are read, too.
    """
    import asyncio

    from streamrec.feeder.operate.configuration import effective, survey

    plain = effective(settings)
    outcomes = asyncio.run(survey(settings.datasets))
    for name, result in outcomes.items():
        is_fault = isinstance(result, StreamrecError)
        plain["datasets"][name]["opened"] = {"error": str(result)} if is_fault else result
    print_json(plain)
    faults = {
        f"datasets.{name}: {error}": error
        for name, error in outcomes.items()
        if isinstance(error, StreamrecError)
    }
    if (error := _access_fault(settings)) is not None:
        faults = {str(error): error, **faults}
    if faults:
        is_wrong = any(isinstance(error, ConfigError) for error in faults.values())
        # The class decides the exit code: 2 if the configuration is wrong, 1 if a store fails.
        raise (ConfigError if is_wrong else StreamrecError)("; ".join(faults))


def _access_fault(settings: DaemonSettings) -> ConfigError | None:
    """Return the reason why certificates or tokens cannot be used."""
    from streamrec.feeder.access.access import Access

    try:
        Access(settings.server, {name: one.tokens for name, one in settings.datasets.items()})
    except ConfigError as error:
        return error
    return None


def _announce(bound: Bound, datasets: list[str], as_json: bool) -> None:
    """Print the addresses on which the daemon listens; JSON on one line: others may wait for it."""
    lines = [f"streamrec serves {', '.join(datasets)} at {', '.join(bound.feeder)}"]
    if bound.status:
        lines.append(f"status page, health and metrics at http://{bound.status}")
    lines += (f"not open yet: {name} ({why})" for name, why in bound.failing.items())
    if as_json:
        facts = {"listen": bound.feeder, "status": bound.status, "failing": bound.failing}
        lines = [json.dumps(facts)]
    try:
        click.echo("\n".join(lines))
    except OSError as error:
        # Clients do not depend on it: whoever has started the daemon may have gone.
        discard_output()
        log.warning("the addresses cannot be printed (%s)", error.strerror)


def run(
    settings: DaemonSettings,
    ready: Callable[[Bound], None],
    until_eof: bool,
    load: Callable[[], DaemonSettings],
) -> None:
    """Serve until a signal, or with ``until_eof`` until standard input ends."""
    from streamrec.config.named_files import check_variables

    check_variables()  # aiohttp reads certificates while it is imported
    from streamrec.feeder.operate import daemon, log_format

    log_format.configure(settings.server)
    _log_beginning()
    if until_eof:
        # A daemon thread: read() cannot be interrupted at the end.
        threading.Thread(target=_watch_stdin, name="stdin", daemon=True).start()
    try:
        daemon.run(settings, ready, load)
        log.info("has ended")
    finally:
        log_format.flush()  # an error is told after the lines that led to it


def _log_beginning() -> None:
    """Log what begins; the kernel in Python is a warning, for it makes a feeder slow."""
    from streamrec.feeder.server.server import build

    versions = build()
    level = logging.INFO if versions["kernel"] == "native" else logging.WARNING
    log.log(level, "streamrec %(version)s begins, with the %(kernel)s kernel", versions)


def _watch_stdin() -> None:
    """End this process when standard input ends, with the process that started it."""
    # The descriptor and not sys.stdin, whose lock this thread would hold at the interpreter's end.
    while os.read(0, 4096):
        pass
    # As a signal, so that this end drains clients like any other.
    os.kill(os.getpid(), signal.SIGTERM)
