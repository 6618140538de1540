from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import pytest
from click.testing import CliRunner

import streamrec
from streamrec.cli.options import VARIABLE, storage_option
from streamrec.cli.program import program
from streamrec.formats.shards.tfrecord import frame
from tests.cli.support import DATA, SECONDS, assert_one_sentence, environment, verbs_of
from tests.cli.support import streamrec as cli
from tests.pipeline.made_folders import ids_of, make_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


SHELLS = ("bash", "zsh", "fish")
HEAVY = {"aiohttp", "fsspec", "google.protobuf", "numpy", "pydantic", "rich", "s3fs"}


class Found(NamedTuple):
    kind: str
    value: str


def asked(shell: str, line: str) -> dict[str, str]:
    """Return the variables by which a shell asks what can follow on a line."""
    words = line.split(" ")
    between = "\n" if shell == "bash" else " "
    last = words[-1] if shell == "fish" else str(len(words) - 1)
    line_so_far = {"COMP_WORDS": between.join(words), "COMP_CWORD": last}
    return {VARIABLE: f"{shell}_complete", **line_so_far}


def answers(shell: str, out: str) -> Iterator[Found]:
    """Yield what a shell makes of the answer; zsh has three lines for each."""
    lines = out.rstrip("\n").splitlines()
    if shell == "zsh":
        for kind, value in zip(lines[::3], lines[1::3], strict=True):
            yield Found(kind, value)
        return
    for line in lines:
        kind, _, value = line.partition("\t")[0].partition(",")
        yield Found(kind, value)


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def streamrec_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the program on the path, for scripts of shells."""
    script = tmp_path / "streamrec"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m streamrec "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


def complete(monkeypatch: pytest.MonkeyPatch, shell: str, line: str) -> list[Found]:
    with monkeypatch.context() as patched:
        for name, value in asked(shell, line).items():
            patched.setenv(name, value)
        outcome = cli()
    assert (outcome.code, outcome.err) == (0, "")
    return list(answers(shell, outcome.out))


def in_shell(name: str, script: str) -> list[str]:
    """Run a script in a shell, and return the lines that it prints."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    done = subprocess.run(
        [path, "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("streamrec ve", ["verify"]),
        ("streamrec in", ["index", "info"]),
        ("streamrec --ver", ["--version"]),
        ("streamrec info --sc", ["--scan"]),
        ("streamrec bench --pri", ["--prices"]),
        ("streamrec bench plan --", ["--prices", "--json", "--debug", "--help"]),
        ("streamrec bench compare a --ht", ["--html"]),
        ("streamrec cat -n 3 --no-", ["--no-check-crc"]),
        ("streamrec cat --max-record-bytes 5MiB --ra", ["--raw"]),
        ("streamrec cat --max-record-bytes wrong --ra", ["--raw"]),
        ("streamrec cat --frob", []),
        ("streamrec frob --s", []),
    ],
)
def test_verbs_and_options(
    monkeypatch: pytest.MonkeyPatch, shell: str, line: str, values: list[str]
) -> None:
    found = complete(monkeypatch, shell, line)
    assert found == [Found("plain", value) for value in values]


def test_every_verb_and_option(monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    verbs = [found.value for found in complete(monkeypatch, shell, "streamrec ")]
    assert sorted(verbs) == sorted(verbs_of(program))
    for verb, command in verbs_of(program).items():
        names = {found.value for found in complete(monkeypatch, shell, f"streamrec {verb} --")}
        options = [param for param in command.params if isinstance(param, click.Option)]
        assert names == {"--help"}.union(
            *(
                {name for name in (*one.opts, *one.secondary_opts) if len(name) > 2}
                for one in options
            )
        )


def test_commands_beneath_a_verb(monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    found = complete(monkeypatch, shell, "streamrec bench si")
    assert found == [Found("plain", "simulate"), Found("file", "si")]
    found = complete(monkeypatch, shell, "streamrec bench train si")
    assert found == [Found("file", "si")]


def test_choices(monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    codec = click.Option(["--codec"], type=click.Choice(["gzip", "zlib"]))
    monkeypatch.setitem(program.commands, "pack", click.Command("pack", params=[codec]))
    assert complete(monkeypatch, shell, "streamrec pack --codec g") == [Found("plain", "gzip")]


@pytest.mark.parametrize("line", ["cat tra", "serve tra", "index --output tra", "demo --keep tra"])
def test_local_files(monkeypatch: pytest.MonkeyPatch, shell: str, line: str) -> None:
    assert complete(monkeypatch, shell, f"streamrec {line}") == [Found("file", "tra")]


def test_objects_in_a_store_are_not_listed(monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    assert complete(monkeypatch, shell, "streamrec cat s3://bucket/tra") == []


@pytest.mark.parametrize("verb", verbs_of(program))
def test_nothing_heavy_is_imported(verb: str) -> None:
    line = f"streamrec {verb} --max-record-bytes 5MiB --storage-option anon=true --"
    code = (
        "import sys; from streamrec.cli.program import run; run([])\n"
        f"print(sorted({HEAVY} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(**asked("bash", line)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout.splitlines()[-1], done.stderr) == ("[]", "")


@pytest.mark.parametrize(
    ("instruction", "words"),
    [
        ("tcsh_source", ("'tcsh_source'", "set it to bash_source, zsh_source or fish_source")),
        ("bash_frob", ("'bash_frob'",)),
        ("1", ("'1'",)),
        ("fish_complete", ("COMP_WORDS", "set fish_source")),
    ],
)
def test_wrong_instructions(
    monkeypatch: pytest.MonkeyPatch, instruction: str, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv(VARIABLE, instruction)
    assert_one_sentence(cli(), 2, VARIABLE, *words)


@pytest.mark.usefixtures("streamrec_on_path")
def test_in_bash() -> None:
    script = f"""
        eval "$({VARIABLE}=bash_source streamrec)"
        complete -p streamrec
        COMP_WORDS=(streamrec info --sc) COMP_CWORD=2
        _streamrec_completion streamrec
        echo "${{COMPREPLY[@]}}"
    """
    complete_with, reply = in_shell("bash", script)
    assert "-F _streamrec_completion streamrec" in complete_with
    assert reply == "--scan"


@pytest.mark.usefixtures("streamrec_on_path")
def test_in_fish(tmp_path: Path) -> None:
    (tmp_path / "train.tfrecord").touch()
    script = f"""
        {VARIABLE}=fish_source streamrec | source
        cd {shlex.quote(str(tmp_path))}
        complete --do-complete "streamrec info --sc"
        complete --do-complete "streamrec cat tra"
    """
    option, path = in_shell("fish", script)
    assert option.startswith("--scan\t")
    assert path.startswith("train.tfrecord")


@pytest.mark.usefixtures("streamrec_on_path")
def test_in_zsh() -> None:
    script = f"""
        autoload -U compinit
        compinit -u -D
        eval "$({VARIABLE}=zsh_source streamrec)"
        echo $_comps[streamrec]
    """
    assert in_shell("zsh", script) == ["_streamrec_completion"]


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


def test_verbs_read_a_split_of_a_folder(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "a{b}")  # a name that a pattern would change
    assert streamrec.shards(folder, split="train")[1:] == [
        f"{folder}/made-train.tfrecord-0000{shard}-of-00004" for shard in (1, 2, 3)
    ]
    # A split that is named twice is read twice, as by TFDS.
    assert len(streamrec.shards(folder, split="train+train")) == 8

    def run(*words: str) -> Any:
        return CliRunner().invoke(program, [words[0], str(folder), "--split", *words[1:]])

    printed = run("cat", "test+train[1shard]", "--features", "id").stdout
    ids = [json.loads(line)["id"][0] for line in printed.splitlines()]
    assert ids == [*ids_of("test"), *ids_of("train")[4:11]]
    assert run("index", "train").exit_code == 0
    assert json.loads(run("verify", "train", "--json").stdout)["index"]["faults"] == []
    settings: Any = {"split": "train", "index": True, "batch_size": 17, "engine": "thread"}
    with streamrec.open(folder, **settings) as stream:
        assert sorted(next(stream)["id"].tolist()) == ids_of("train")
    for words, why in (
        (("cat", "train[:2]"), "ends inside a shard"),
        (("cat", "trian"), "did you mean 'train'"),
        (("cat", "train["), "the setting 'split' has the part 'train[', which is not a split"),
        (("index", ""), "the setting 'split' has the part '', which is not a split"),
        (("index", "all"), "describes one whole split"),
        (("verify", "train", "x"), "one TFDS folder, and there are 2 URLs"),
    ):
        failed = run(*words)
        assert why in failed.output + str(failed.exception)
