"""``streamrec``: its verbs, its exit codes, and the text of its errors."""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING

import click

from streamrec import __version__
from streamrec.cli.bench import bench
from streamrec.cli.cat import cat
from streamrec.cli.completion import VARIABLE, complete
from streamrec.cli.demo import demo
from streamrec.cli.index import index
from streamrec.cli.info import info
from streamrec.cli.merge_index import merge_index
from streamrec.cli.option_names import no_such_option, with_dashes
from streamrec.cli.options import debug_option
from streamrec.cli.reshard import reshard
from streamrec.cli.serve import serve
from streamrec.cli.top import top
from streamrec.cli.verify import verify
from streamrec.cli.write import write
from streamrec.errors import ConfigError, StreamrecError
from streamrec.masking import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130
OTHER_NAMES = {"merge": "reshard", "split": "reshard"}
"""Verbs that people look for, which another one does."""


class _Program(click.Group):
    """The verbs, which are found by their other names, too."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, OTHER_NAMES.get(cmd_name, cmd_name))


@click.group(
    cls=_Program,
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "token_normalize_func": with_dashes,  # of all verbs
    },
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@debug_option
@click.pass_context
def program(context: click.Context) -> None:
    """Feed training jobs from TFRecord shards in object storage.

    merge and split are other names of reshard.

    Exit codes: 0 done, 1 the data or the remote side failed, 2 wrong usage or configuration, 130
    interrupted.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(WRONG_USAGE)


for verb in (bench, cat, demo, index, info, merge_index, reshard, serve, top, verify, write):
    program.add_command(verb)


def run(arguments: Sequence[str]) -> int:
    """Run one command.

    Args:
        arguments: The arguments after the program's name.

    Returns:
        The exit code.
    """
    try:
        code = _invoke(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        return _discard_output()
    return code


def _invoke(arguments: Sequence[str]) -> int:
    try:
        if instruction := os.environ.get(VARIABLE):
            complete(program, instruction)
            return DONE
        with program.make_context("streamrec", list(arguments)) as context:
            program.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - any defect becomes one sentence and a code
        return _report(error, debug="--debug" in arguments)
    return DONE


def _report(error: Exception, *, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    code, sentence = _explain(error)
    click.echo(f"streamrec: error: {sentence}", err=True)
    return code


def _explain(error: Exception) -> tuple[int, str]:
    if isinstance(error, click.UsageError):
        return WRONG_USAGE, _usage(error)
    if isinstance(error, click.ClickException):
        return FAILED, error.format_message()
    if isinstance(error, ConfigError):
        return WRONG_USAGE, str(error)
    if isinstance(error, StreamrecError | OSError):
        return FAILED, printable(str(error))
    what = printable(f"{type(error).__name__}: {error}")
    return FAILED, f"this is a mistake in streamrec, please report it with --debug: {what}"


def _usage(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx else "streamrec"
    if isinstance(error, click.NoSuchOption):
        message = no_such_option(error)
    else:
        message = error.format_message().rstrip(".")
    return f"{message[:1].lower()}{message[1:]}; see `{path} --help`"


def _discard_output() -> int:
    """Return the exit code for a reader of our output that has ended (``| head``): no failure."""
    # Standard output becomes the null device, or the interpreter would complain when it flushes it.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
    return DONE
