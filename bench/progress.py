"""Says on standard error what a benchmark is doing, from its first second."""

from __future__ import annotations

import time

import click

_BEGAN = time.monotonic()


def say(text: str) -> None:
    """Print a line, with the seconds since the benchmark began."""
    click.echo(f"{time.monotonic() - _BEGAN:7.1f} s  {text}", err=True)
