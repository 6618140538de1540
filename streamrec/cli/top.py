"""``streamrec top``: running feeders, live in the terminal."""

from __future__ import annotations

import io
import select
import sys
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import click

from streamrec.cli.options import RealNumber, debug_option, json_option, refuse_unused
from streamrec.cli.printing import print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console, Group


QUIT = "qQ"
DEFAULT = "127.0.0.1:7071"


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


@click.command(short_help="Show running feeders, live in the terminal.")
@click.argument("where", metavar="[HOST:PORT]...", nargs=-1)
@click.option("--once", is_flag=True, help="Print one frame and end.")
@click.option(
    "--every",
    type=RealNumber(0.1, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two frames.",
)
@json_option
@debug_option
def top(*, where: tuple[str, ...], once: bool, every: float, as_json: bool) -> None:
    """Show running feeders, live: where their time goes, rates, subscriptions, errors.

    HOST:PORT is a feeder's status address, 127.0.0.1:7071 by default. Several of them are shown
    side by side, and the ranks of a job are compared over all of them. q or Ctrl-C ends it. If
    standard output is not a terminal, it prints one frame.
    """
    from rich.console import Console

    from streamrec.feeder.access.address import host_and_port, join_host
    from streamrec.feeder.operate.remote_status import read_status

    if once or as_json:
        refuse_unused("beside --json" if as_json else "beside --once", "every")
    addresses = [
        host_and_port(one.removeprefix("http://").rstrip("/")) for one in where or (DEFAULT,)
    ]
    if as_json:
        found = {join_host(*one): read_status(*one) for one in addresses}
        print_json(found if len(found) > 1 else next(iter(found.values())))
        return
    console = Console(highlight=False)
    # Of a bar that the terminal's coding lacks, a question mark keeps the width.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    # A pipe or a file gets one frame: escape codes would fill it.
    if once or not console.is_terminal:
        console.print(look(addresses)(None))
    else:
        watch(console, addresses, every)


def look(addresses: Sequence[tuple[str, int]]) -> Callable[[str | None], Group]:
    """Ask one or several feeders; return the function that makes a frame of the answers.

    That function takes the reason why the answers are old; ``None``: they are new.
    """
    from streamrec.cli.dashboard import dashboard, fleet_dashboard
    from streamrec.feeder.access.address import join_host
    from streamrec.feeder.operate.remote_status import view_fleet, view_status

    if len(addresses) > 1:
        return partial(fleet_dashboard, view_fleet(addresses))
    [address] = addresses
    return partial(dashboard, view_status(*address), join_host(*address))


def watch(
    console: Console,
    addresses: Sequence[tuple[str, int]],
    every: float,
    pause: Callable[[float], bool] = is_quit_within,
) -> None:
    """Show one frame after the other, until interrupted or ``q`` is typed.

    A feeder that stops answering after the first frame is asked again and again: it may come back.

    Args:
        console: The terminal.
        addresses: The host and port of each feeder's status.
        every: Seconds between two frames.
        pause: Waits for so many seconds, or returns True when it is to end.
    """
    from rich.live import Live

    from streamrec.errors import FeedError

    # Before the screen is taken, so that an error in the first request can be read.
    frame, trouble = look(addresses), None
    with single_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(frame(trouble), refresh=True)
            if pause(every):
                return
            try:
                frame, trouble = look(addresses), None
            except FeedError as error:
                # The old frame stays, because a feeder that restarts comes back.
                trouble = error.message.partition(";")[0]
