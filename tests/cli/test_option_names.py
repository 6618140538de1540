from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest

from streamrec.cli.option_names import OTHER_NAMES
from streamrec.cli.program import program
from tests.cli.support import DATA, assert_one_sentence
from tests.cli.support import streamrec as cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TABLE = DATA / "iris.csv"


def test_underscores_stand_for_dashes(tmp_path: Path) -> None:
    table = tmp_path / "x.csv"
    table.write_text("first_name,n\na,1\nb,2\n")
    options = "--shard_size=1GB", "--on_error", "skip", "--features=first_name=bytes", "--dry_run"
    outcome = cli("write", str(table), f"{tmp_path}/x.tfrecord", *options)
    assert outcome.code == 0, outcome
    assert "2 records" in outcome.out
    assert not list(tmp_path.glob("*.tfrecord"))


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--train_shards", "--shards"),
        ("--num_shards=3", "--shards"),
        ("--num_threads", "--workers"),
        ("--output_directory", "DEST"),
        ("--data_dir", "SOURCE"),
        ("--delimeter", "--delimiter"),
    ],
)
def test_names_of_other_scripts(given: str, meant: str) -> None:
    name = given.replace("_", "-").partition("=")[0]
    words = f"no such option '{name}'; did you mean {meant}?"
    assert_one_sentence(cli("write", "x", "y", given, "3"), 2, words)


def test_an_option_that_resembles_no_other() -> None:
    outcome = cli("write", "x", "y", "--zzz_qqq")
    assert_one_sentence(outcome, 2, "no such option '--zzz-qqq'; see `streamrec write --help`")


def test_another_verb_without_the_option() -> None:
    outcome = cli("cat", "x", "--output_directory")
    assert "DEST" not in outcome.err
    assert outcome.code == 2


def verbs(group: click.Group) -> Iterator[click.Command]:
    for each in group.commands.values():
        yield each
        if isinstance(each, click.Group):
            yield from verbs(each)


def test_no_option_has_an_underscore_or_a_name_of_the_table() -> None:
    options = {name for verb in verbs(program) for param in verb.params for name in param.opts}
    long = {name for name in options if name.startswith("--")}
    assert len(long) > 40
    assert not [name for name in long if "_" in name]
    assert not long & OTHER_NAMES.keys()
