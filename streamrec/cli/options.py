"""Options that several verbs have, and the completion of a line by bash, zsh and fish.

For completion a shell runs the program with :data:`VARIABLE` set, and the line so far in
``COMP_WORDS`` and ``COMP_CWORD``, by click's protocol. Nothing heavy may be imported meanwhile,
since that happens at each press of Tab.
"""

from __future__ import annotations

import json
import math
import os
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem, shell_complete

from streamrec.errors import ConfigError
from streamrec.surroundings import absolute

if TYPE_CHECKING:
    from collections.abc import Callable

    Verb = TypeVar("Verb", bound=Callable[..., Any])


VARIABLE = "_STREAMREC_COMPLETE"
"""The variable by which shells ask for completion; click names it so."""


def complete(program: click.Command, instruction: str) -> None:
    """Print what can follow on the line, or the script that makes a shell ask for it.

    Args:
        program: The command that is completed.
        instruction: The value of :data:`VARIABLE`: ``bash_source``, ``bash_complete``, and so on.

    Raises:
        ConfigError: There is no such shell or instruction, or the line is not there.
    """
    # click would fail with a KeyError.
    if instruction.endswith("_complete") and not {"COMP_WORDS", "COMP_CWORD"} <= set(os.environ):
        raise ConfigError(
            f"{VARIABLE}={instruction} is for the scripts of shells, which set COMP_WORDS and "
            f"COMP_CWORD; for that script set {instruction.replace('_complete', '_source')}"
        )
    if shell_complete(program, {}, "streamrec", VARIABLE, instruction):
        raise ConfigError(
            f"{VARIABLE} is {instruction!r}, for which there is no completion; set it to "
            "bash_source, zsh_source or fish_source"
        )


def local_files(
    _: click.Context, __: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Let the shell complete the path of a file; objects in a store are not listed."""
    # The shell itself completes the path, as it does for any program.
    return [] if "://" in incomplete else [CompletionItem(incomplete, type="file")]


SETTING = "NAME=VALUE"
"""The form of a setting of a stream; other options of pairs are those of stores."""


class WholeNumber(click.IntRange):
    """An integer of a range; of a text, click would say that it is not an "integer range"."""

    name = "integer"


class RealNumber(click.FloatRange):
    """A number of a range, as above."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number of a text; NaN is in no range."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


def _pair(text: str, form: str) -> tuple[str, Any]:
    """Split ``KEY=VALUE``, and read the value as JSON where it is."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        # Click adds the context and the option to what a callback raises.
        example = "batch_size=64" if form == SETTING else "endpoint_url=http://host:9000"
        raise click.BadParameter(f"{text!r} is not {form}, as in {example}")
    try:
        # JSON where it is: numbers and true reach fsspec as such, and other texts need no quotes.
        return key, json.loads(value)
    except ValueError:
        return key, value


def key_values(_: click.Context, option: click.Parameter, pairs: tuple[str, ...]) -> dict[str, Any]:
    """Return the values of a repeated option ``KEY=VALUE`` by key."""
    return dict(_pair(text, option.metavar or "") for text in pairs)


def _task_value(_: click.Context, __: click.Parameter, text: str) -> tuple[int, int]:
    """Return the task's number and the number of tasks of an option such as ``0/8``."""
    number, _separator, tasks = text.partition("/")
    try:
        return int(number), int(tasks)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not I/N, as in 0/8") from None


def check_dest(place: str) -> str:
    """Return DEST, but refuse a directory's name without a slash: shards would stand beside it."""
    if not place.endswith("/") and Path(place).is_dir():
        raise click.UsageError(
            f"{place!r} is a directory; put a slash after it to write into it, {place + '/'!r}, "
            "or name the shards"
        )
    return place


def size_value(context: click.Context, param: click.Parameter, text: str | None) -> int | None:
    """Return the bytes of an option such as ``64MiB``."""
    if text is None or context.resilient_parsing:  # completion needs no value, and no import
        return None
    from streamrec.config.plain_values import byte_size

    return byte_size(param.opts[0], text)


def refuse_unused(when: str, *names: str) -> None:
    """Refuse options that are given to the running command, but have no effect.

    Args:
        when: The circumstances, such as ``"without --shuffle"``.
        names: The parameters of the options, by name.

    Raises:
        UsageError: One of them is given, even if its value is the default.
    """
    context = click.get_current_context()
    for param in context.command.params:
        # By its source and not by its value: a default that is typed has no effect either.
        is_given = context.get_parameter_source(param.name or "") == ParameterSource.COMMANDLINE
        if param.name in names and is_given:
            raise click.UsageError(f"{param.opts[0]} has no effect {when}; leave it out")


def output_file_option(option: str, text: str) -> Callable[[Verb], Verb]:
    """Return an option for a file to write, whose directory is checked before minutes are spent."""
    path = click.Path(dir_okay=False, writable=True, path_type=Path)
    return click.option(option, type=path, metavar="FILE", help=text, callback=_in_a_directory)


def _in_a_directory(_: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    # A file that is there was checked by click.
    if path is None or path.exists():
        return path
    directory = absolute(path).parent
    if not directory.is_dir():
        raise click.BadParameter(f"there is no directory {directory}; create it", param=parameter)
    if not os.access(directory, os.W_OK):
        raise click.BadParameter(
            f"the directory {directory} cannot be written; name another one", param=parameter
        )
    return path


shuffle_option = click.option(
    "--shuffle", "is_shuffled", is_flag=True, help="Put all records in a random order."
)
seed_option = click.option(
    "--seed", type=WholeNumber(min=0), default=0, show_default=True, help="Seed of --shuffle."
)
memory_option = click.option(
    "--memory",
    metavar="BYTES",
    default="1GiB",
    show_default=True,
    callback=size_value,
    help="Most memory for reading and --shuffle; further records wait on disk, in TMPDIR.",
)
task_option = click.option(
    "--task",
    metavar="I/N",
    default="0/1",
    callback=_task_value,
    help="Write the part of task I of N, from 0; streamrec merge-index completes the dataset.",
)
debug_option = click.option(
    "--debug", is_flag=True, expose_value=False, help="Add the traceback to an error."
)
record_option = click.option(
    "--max-record-bytes",
    callback=size_value,
    metavar="BYTES",
    help="Refuse longer records, before memory is allocated for them. "
    "[the default memory budget of a stream]",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else."
)
exclude_option = click.option(
    "--exclude",
    metavar="LIST",
    shell_complete=local_files,
    help="Leave out the records that this list names, as the setting exclude does.",
)
urls_argument = click.argument(
    "urls", metavar="URL...", nargs=-1, required=True, shell_complete=local_files
)
storage_option = click.option(
    "--storage-option",
    "storage_options",
    metavar="KEY=VALUE",
    multiple=True,
    callback=key_values,
    help="One of fsspec's options for the URL's filesystem, such as "
    "endpoint_url=http://host:9000; the value may be JSON. Repeatable. Put credentials into the "
    "environment: others can see a command line.",
)
dest_option = click.option(
    "--dest-option",
    "dest_options",
    metavar="KEY=VALUE",
    multiple=True,
    callback=key_values,
    help="Like --storage-option, for DEST. [the options of --storage-option]",
)


_split_option = click.option(
    "--split",
    metavar="NAME",
    help="Read this split of the TFDS folder that URL names; train+test and all are several.",
)
_CONFIG = click.Path(dir_okay=False, path_type=Path)
_STREAM_OPTIONS = (
    click.option(
        "--config", type=_CONFIG, metavar="FILE", help="Take settings from this file of a feeder."
    ),
    click.option("--dataset", metavar="NAME", help="The dataset of --config. [the only one]"),
    click.option(
        "--set",
        "changes",
        metavar=SETTING,
        multiple=True,
        callback=key_values,
        help="A setting of the stream, such as batch_size=64; the value may be JSON. Repeatable.",
    ),
)


def stream_options(verb: Verb) -> Verb:
    """Add the options by which a verb takes the settings of a stream."""
    # The last decorator comes first in --help.
    for add in reversed(_STREAM_OPTIONS):
        verb = add(verb)
    return verb


def shard_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Add the arguments and options of all verbs that read shards, after the verb's own."""

    @wraps(verb)
    def read(*arguments: Any, urls: tuple[str, ...], split: str | None, **others: Any) -> None:
        shards = urls if split is None else _of_folder(urls, split, others["storage_options"])
        verb(*arguments, urls=shards, **others)

    whole: Callable[..., None] = read
    for add in (debug_option, storage_option, record_option, _split_option, urls_argument):
        whole = add(whole)
    return whole


def _of_folder(urls: tuple[str, ...], split: str, options: dict[str, Any]) -> tuple[str, ...]:
    """Return the shards of a TFDS folder's splits, as texts that stand for nothing else."""
    from streamrec.config.places import escape
    from streamrec.streams.sources import shards

    if len(urls) != 1:
        raise click.UsageError(f"--split is of one TFDS folder, and there are {len(urls)} URLs")
    return tuple(map(escape, shards(urls[0], split=split, storage_options=options)))
