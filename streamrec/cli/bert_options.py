"""The options of ``streamrec write --kind bert``, with the names of the well-known scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streamrec.cli.completion import local_files
from streamrec.cli.options import checked_dest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_OPTIONS = (
    click.option(
        "--vocab-file",
        metavar="FILE",
        shell_complete=local_files,
        help="BERT: the vocabulary, one word piece a line; required.",
    ),
    click.option(
        "--do-lower-case/--no-do-lower-case",
        default=None,
        help="BERT: put text in lower case, for an uncased model.  [yes]",
    ),
    click.option(
        "--do-whole-word-mask",
        is_flag=True,
        default=None,
        help="BERT: mask all pieces of a word, or none.",
    ),
    click.option(
        "--max-seq-length",
        type=click.IntRange(5),
        metavar="N",
        help="BERT: the most tokens of a pair.  [128]",
    ),
    click.option(
        "--max-predictions-per-seq",
        type=click.IntRange(1),
        metavar="N",
        help="BERT: the most masked tokens of a pair.  [20]",
    ),
    click.option(
        "--masked-lm-prob",
        type=click.FloatRange(0, 1),
        metavar="FRACTION",
        help="BERT: the part of the tokens that is masked.  [0.15]",
    ),
    click.option(
        "--short-seq-prob",
        type=click.FloatRange(0, 1),
        metavar="FRACTION",
        help="BERT: the part of the documents with shorter pairs.  [0.1]",
    ),
    click.option(
        "--min-short-seq-length",
        type=click.IntRange(2),
        metavar="N",
        help="BERT: the least tokens that shorter pairs are filled to.  [2]",
    ),
    click.option(
        "--random-seed", type=int, metavar="N", help="BERT: the seed of all draws.  [12345]"
    ),
    click.option(
        "--dupe-factor",
        type=click.IntRange(1),
        metavar="N",
        help="BERT: how often each document is used, with other pairs and masks.  [10]",
    ),
    click.option(
        "--metadata-files",
        multiple=True,
        metavar="FILE",
        shell_complete=local_files,
        help="BERT: a list of files to read, one a line, in place of SOURCE. Repeatable.",
    ),
    click.option(
        "--input-files-prefix",
        metavar="DIRECTORY",
        shell_complete=local_files,
        help="BERT: where the listed files are; it may be a URL.",
    ),
    click.option(
        "--use-v2-feature-names",
        is_flag=True,
        default=None,
        help="BERT: input_word_ids and input_type_ids, as newer models have it.",
    ),
)


def bert_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a verb."""
    for add in reversed(_OPTIONS):
        verb = add(verb)
    return verb


def places(source: str, destination: str | None, lists: Sequence[str]) -> tuple[str, str]:
    """Return SOURCE and DEST, of which only DEST is given where lists name the files."""
    if destination is not None:
        return source, checked_dest(destination)
    if not lists:
        raise click.UsageError("the place of the shards is missing; give DEST behind SOURCE")
    return "", checked_dest(source)
