"""``streamrec top``: a running feeder, live in the terminal."""

from __future__ import annotations

import select
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from streamrec.cli.options import debug_option, json_option, refuse_unused
from streamrec.cli.printing import print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console


QUIT = "qQ"


@contextmanager
def single_keys() -> Iterator[None]:
    """Have the terminal give each key at once, without Enter, and leave Ctrl-C as it is."""
    if not _is_terminal():
        yield
        return
    import termios
    import tty

    # A terminal keeps its mode when its program ends: put it back.
    before = termios.tcgetattr(sys.stdin)
    # Not raw mode, in which Ctrl-C is a key like any other.
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def is_quit_within(seconds: float) -> bool:
    """Wait for so many seconds; return True at once when ``q`` is typed."""
    if not _is_terminal():
        time.sleep(seconds)
        return False
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        # A blocking read could not end when the next frame is due.
        if select.select([sys.stdin], [], [], left)[0]:
            key = sys.stdin.read(1)
            if key in QUIT:  # or "": the terminal is gone
                return True
    return False


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


@click.command(short_help="Show a running feeder, live in the terminal.")
@click.argument("where", metavar="[HOST:PORT]", default="127.0.0.1:7071")
@click.option("--once", is_flag=True, help="Print one frame and end.")
@click.option(
    "--every",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two frames.",
)
@json_option
@debug_option
def top(*, where: str, once: bool, every: float, as_json: bool) -> None:
    """Show a running feeder, live: where its time goes, rates, subscriptions, errors.

    HOST:PORT is the feeder's status address, 127.0.0.1:7071 by default. q or Ctrl-C ends it. Where
    standard output is not a terminal, one frame is printed.
    """
    from rich.console import Console

    from streamrec.feeder.access.address import host_and_port
    from streamrec.feeder.operate.remote_status import read_status

    if once or as_json:
        refuse_unused("beside --json" if as_json else "beside --once", "every")
    host, port = host_and_port(where.removeprefix("http://").rstrip("/"))
    if as_json:
        print_json(read_status(host, port))
        return
    console = Console(highlight=False)
    # A pipe or a file gets one frame: escape codes would fill it.
    if once or not console.is_terminal:
        show_once(console, host, port)
    else:
        watch(console, host, port, every)


def show_once(console: Console, host: str, port: int) -> None:
    """Print one frame."""
    from streamrec.cli.dashboard import dashboard
    from streamrec.feeder.operate.remote_status import view_status

    console.print(dashboard(view_status(host, port), f"{host}:{port}"))


def watch(
    console: Console,
    host: str,
    port: int,
    every: float,
    pause: Callable[[float], bool] = is_quit_within,
) -> None:
    """Show one frame after the other, until interrupted or ``q`` is typed.

    A feeder that stops answering after the first frame is asked again and again: it may come back.

    Args:
        console: The terminal.
        host: The host of the feeder's status address.
        port: Its port.
        every: Seconds between two frames.
        pause: Waits for so many seconds, or returns True when it is to end.
    """
    from rich.live import Live

    from streamrec.cli.dashboard import dashboard
    from streamrec.errors import FeedError
    from streamrec.feeder.operate.remote_status import view_status

    # Before the screen is taken, so that an error in the first request can be read.
    view, trouble = view_status(host, port), None
    with single_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(dashboard(view, f"{host}:{port}", trouble), refresh=True)
            if pause(every):
                return
            try:
                view, trouble = view_status(host, port), None
            except FeedError as error:
                # The old frame stays, because a feeder that restarts comes back.
                trouble = error.message.partition(";")[0]
