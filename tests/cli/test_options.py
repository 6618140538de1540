from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner

import streamrec
from streamrec.cli.options import storage_option
from streamrec.formats.shards.tfrecord import frame
from tests.cli.support import DATA, assert_one_sentence
from tests.cli.support import streamrec as cli

if TYPE_CHECKING:
    from pathlib import Path


def parse(*pairs: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    @click.command()
    @storage_option
    def verb(storage_options: dict[str, Any]) -> None:
        found.update(storage_options)

    arguments = [f"--storage-option={pair}" for pair in pairs]
    result = CliRunner().invoke(verb, arguments, standalone_mode=False)
    if result.exception:
        raise result.exception
    return found


def test_none() -> None:
    assert parse() == {}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("text", "text"),
        ("http://host:9000/a=b", "http://host:9000/a=b"),
        ("", ""),
        ("true", True),
        ("12", 12),
        ('"12"', "12"),
        ('{"verify": false}', {"verify": False}),
    ],
)
def test_values(text: str, value: object) -> None:
    assert parse(f"name={text}") == {"name": value}


def test_the_last_of_a_key_counts() -> None:
    assert parse("a=1", "b=2", "a=3") == {"a": 3, "b": 2}


@pytest.mark.parametrize("text", ["name", "=value", ""])
def test_no_pair(text: str) -> None:
    with pytest.raises(click.BadParameter, match="not KEY=VALUE"):
        parse(text)


LONGEST = max(len(r) for r in streamrec.read_records(str(DATA / "numbers-00000-of-00003.tfrecord")))


@pytest.mark.parametrize("verb", ["cat", "info", "verify", "index"])
def test_records_that_are_too_large(verb: str, tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    shutil.copy(DATA / "numbers-00000-of-00003.tfrecord", path)
    assert cli(verb, path, "--max-record-bytes", LONGEST).code == 0
    refused = cli(verb, path, "--max-record-bytes", LONGEST - 1)
    assert refused.code == 1
    assert f"has {LONGEST} bytes, more than max_record_bytes" in refused.out + refused.err
    wrong = cli(verb, path, "--max-record-bytes", "many")
    assert_one_sentence(wrong, 2)
    assert "--max-record-bytes is 'many' but must be a number of bytes" in wrong.err


@pytest.mark.parametrize("arguments", [("cat", "-n", 1, "--raw"), ("info",)])
def test_by_default_they_are_as_long_as_a_stream_takes(
    arguments: tuple[object, ...], tmp_path: Path
) -> None:
    """Not only as long as the small budget that these verbs read with."""
    path = tmp_path / "large"
    path.write_bytes(frame(bytes(33 << 20)))
    assert cli(*arguments, path).code == 0


@pytest.mark.parametrize(
    ("arguments", "option", "when"),
    [
        (("top", "--once", "--every", 2), "--every", "beside --once"),
        (("top", "--json", "--every", 2), "--every", "beside --json"),
        (("serve", "x.toml", "--check-config", "--until-eof"), "--until-eof", "--check-config"),
        (("reshard", "x", "y.tfrecord", "--seed", 0), "--seed", "without --shuffle"),
        (
            ("reshard", "x", "y.tfrecord", "--shards", 2, "--shard-size", "1MB"),
            "--shard-size",
            "beside --shards",
        ),
        (
            ("write", "x", "y.tfrecord", "--shards", 2, "--shard-size", "1MB", "--dry-run"),
            "--shard-size",
            "beside --shards",
        ),
        (("write", "x", "y.tfrecord", "--seed", 0), "--seed", "without --shuffle"),
        (("write", "x", "y.tfrecord", "--key", "k"), "--key", "without --split"),
        (("write", "x", "y.tfrecord", "--quality", 9), "--quality", "without --encode jpeg"),
        (
            ("write", "x", "y.tfrecord", "--quality", 9, "--resize", "2x2", "--encode", "png"),
            "--quality",
            "beside --encode png",
        ),
    ],
)
def test_an_option_without_an_effect_is_refused(
    arguments: tuple[object, ...], option: str, when: str
) -> None:
    words = f"{option} has no effect {'' if when[0] == '-' else when}"
    assert_one_sentence(cli(*arguments), 2, words, when, "leave it out")
