"""``streamrec``: its verbs, its exit codes, and the text of its errors."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from streamrec.cli import INTERRUPTED
from streamrec.cli.bench import bench
from streamrec.cli.demo import demo
from streamrec.cli.info import cat, info
from streamrec.cli.options import VARIABLE, complete, debug_option
from streamrec.cli.printing import discard_output
from streamrec.cli.reshard import reshard
from streamrec.cli.serve import serve
from streamrec.cli.top import top
from streamrec.cli.verify import index, merge_index, verify
from streamrec.cli.which import which
from streamrec.errors import ConfigError, StreamrecError
from streamrec.masking import printable
from streamrec.suggestions import close_names
from streamrec.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence


SHARDS, WORKERS, SOURCE, DEST = "--shards", "--workers", "SOURCE", "DEST"
OTHER_OPTIONS = {
    "--num-shards": SHARDS,
    "--num-tfrecords": SHARDS,
    "--train-shards": SHARDS,
    "--validation-shards": SHARDS,
    "--val-shards": SHARDS,
    "--test-shards": SHARDS,
    "--num-threads": WORKERS,
    "--num-workers": WORKERS,
    "--num-processes": WORKERS,
    "--data-dir": SOURCE,
    "--dataset-dir": SOURCE,
    "--image-dir": SOURCE,
    "--input-dir": SOURCE,
    "--input-directory": SOURCE,
    "--input-file": SOURCE,
    "--train-directory": SOURCE,
    "--validation-directory": SOURCE,
    "--output-dir": DEST,
    "--output-directory": DEST,
    "--output-file": DEST,
    "--output-path": DEST,
}
"""Options of the scripts that write TFRecord, and the option or the argument here."""


def with_dashes(name: str) -> str:
    """Return an option's name with dashes: scripts with TensorFlow's flags have underscores."""
    return name.replace("_", "-")


def no_such_option(error: click.NoSuchOption) -> str:
    """Return the sentence about an unknown option, with the name that was meant."""
    names = _names_of_options(error.ctx.command) if error.ctx else []
    if error.ctx and (command := _command(error.ctx, error.option_name)):
        return f"no such option {error.option_name!r}; it is a command, `{command}`"
    other = OTHER_OPTIONS.get(error.option_name)
    # Short options are too near to each other to be meant by a typing error.
    options = [name for name in names if name.startswith("--")]
    near = [other] if other in names else close_names(error.option_name, options, most=3)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"no such option {error.option_name!r}{meant}"


def _command(context: click.Context, option: str) -> str | None:
    """Return the command beneath the running one that has the name of an option."""
    name = option.lstrip("-")
    group = context.command
    others = group.list_commands(context) if isinstance(group, click.Group) else ()
    return f"{context.command_path} {name}" if name in others else None


def _names_of_options(command: click.Command) -> list[str]:
    """Return the options of a verb, and the names of its arguments in capitals."""
    names = []
    for param in command.params:
        is_argument = isinstance(param, click.Argument)
        names += [param.human_readable_name] if is_argument else param.opts
    return names


DONE, FAILED, WRONG_USAGE = 0, 1, 2
OTHER_VERBS = {"merge": "reshard", "split": "reshard"}
"""Verbs that people look for, which another one does."""


WRITE = "write"
"""The verb that is imported when it is asked for: its options are those of all kinds of sources,
whose import would take a quarter of the start of each other verb."""


class _Program(click.Group):
    """The verbs, which are found by their other names, too."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = OTHER_VERBS.get(cmd_name, cmd_name)
        if name == WRITE and name not in self.commands:
            from streamrec.cli.write import write

            self.add_command(write)
        return super().get_command(ctx, name)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as click calls it
        return sorted({*self.commands, WRITE})


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
    # An error: a script that has lost its verb must notice.
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(WRONG_USAGE)


for verb in (bench, cat, demo, index, info, merge_index, reshard, serve, top, verify, which):
    program.add_command(verb)


def run(arguments: Sequence[str]) -> int:
    """Run one command.

    Args:
        arguments: The arguments after the program's name.

    Returns:
        The exit code.
    """
    code = DONE
    try:
        code = _invoke(arguments)
        # Now, and not when the interpreter ends: a reader that has gone is told by this write.
        sys.stdout.flush()
    # A reader of our output that has ended (`| head`) is no failure, and makes of none a success.
    except BrokenPipeError:
        discard_output()
    return code


def _invoke(arguments: Sequence[str]) -> int:
    try:
        if instruction := os.environ.get(VARIABLE):
            complete(program, instruction)
            return DONE
        # Not program(): click would print errors in its own form, and exit with its own codes.
        with program.make_context("streamrec", list(arguments)) as context:
            program.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    # It is an OSError, which would be told as a failure: run() knows better.
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - any defect becomes one sentence and a code
        # By the words: an error in the arguments leaves no parsed options.
        return _report(error, debug="--debug" in arguments)
    return DONE


def _report(error: Exception, *, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    code, sentence = _explain(error)
    with suppress(OSError):  # nobody reads it, or the disk is full: the code tells all the same
        click.echo(f"streamrec: error: {sentence}", err=True)
    return code


def _explain(error: Exception) -> tuple[int, str]:
    if isinstance(error, click.UsageError):
        return WRONG_USAGE, _usage(error)
    if isinstance(error, click.ClickException):
        return FAILED, error.format_message()
    # Before its base StreamrecError, which has another code.
    if isinstance(error, ConfigError):
        return WRONG_USAGE, str(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        place = error.filename or "the output"
        return FAILED, f"{place} cannot be written, as the disk is full; free space on it"
    if isinstance(error, StreamrecError | OSError):
        # A store's text may hold control characters, which would steer the terminal.
        return FAILED, printable(str(error))
    what = printable(f"{type(error).__name__}: {error}")
    return FAILED, f"this is a mistake in streamrec, please report it with --debug: {what}"


def _usage(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx else "streamrec"
    if isinstance(error, click.NoSuchOption):
        message = no_such_option(error)
    else:
        # click's messages are sentences with a full stop, and ours go on with what to do.
        message = error.format_message().rstrip(".")
    return f"{message[:1].lower()}{message[1:]}; see `{path} --help`"
