"""Options as other programs spell them, and the names that they have here."""

from __future__ import annotations

import click

from streamrec.suggestions import close_names

SHARDS, WORKERS, SOURCE, DEST = "--shards", "--workers", "SOURCE", "DEST"
OTHER_NAMES = {
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
    known = _known(error.ctx.command) if error.ctx else []
    if error.ctx and (command := _command(error.ctx, error.option_name)):
        return f"no such option {error.option_name!r}; it is a command, `{command}`"
    other = OTHER_NAMES.get(error.option_name)
    options = [name for name in known if name.startswith("--")]
    near = [other] if other in known else close_names(error.option_name, options, most=3)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"no such option {error.option_name!r}{meant}"


def _command(context: click.Context, option: str) -> str | None:
    """Return the command beneath the running one that has the name of an option."""
    name = option.lstrip("-")
    others = context.command.commands if isinstance(context.command, click.Group) else ()
    return f"{context.command_path} {name}" if name in others else None


def _known(command: click.Command) -> list[str]:
    """Return the options of a verb, and the names of its arguments in capitals."""
    names = []
    for param in command.params:
        is_argument = isinstance(param, click.Argument)
        names += [param.human_readable_name] if is_argument else param.opts
    return names
