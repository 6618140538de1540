"""Shell completion: the answers to bash, zsh and fish, by click's protocol.

A shell runs the program with :data:`VARIABLE` set, and the line so far in ``COMP_WORDS`` and
``COMP_CWORD``. Nothing heavy may be imported meanwhile, since that happens at each press of Tab.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem, shell_complete

from streamrec.errors import ConfigError

if TYPE_CHECKING:
    import click

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
    return [] if "://" in incomplete else [CompletionItem(incomplete, type="file")]
