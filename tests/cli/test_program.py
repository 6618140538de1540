from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import click
import pytest

import streamrec
from streamrec.cli import main
from streamrec.cli.program import OTHER_OPTIONS, program
from streamrec.cli.program import run as run_program
from streamrec.devstore import DevStore, FaultRule
from streamrec.errors import ConfigError, ObjectNotFound, StateError
from tests.cli.support import (
    DATA,
    assert_one_sentence,
    command,
    environment,
    in_process,
    started,
    storage_options,
    verbs_of,
)
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
    for each in verbs_of(group).values():
        yield each
        if isinstance(each, click.Group):
            yield from verbs(each)


def test_no_option_has_an_underscore_or_a_name_of_the_table() -> None:
    options = {name for verb in verbs(program) for param in verb.params for name in param.opts}
    long = {name for name in options if name.startswith("--")}
    assert len(long) > 40
    assert not [name for name in long if "_" in name]
    assert not long & OTHER_OPTIONS.keys()


VERBS = [
    "bench", "cat", "demo", "index", "info", "merge-index", "reshard", "serve", "top", "verify",
    "which", "write",
]  # fmt: skip


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a verb raise an error."""

    def make(error: BaseException) -> None:
        def verb() -> None:
            raise error

        monkeypatch.setitem(program.commands, "fail", click.Command("fail", callback=verb))

    return make


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Children get Ctrl-C even where the tests themselves run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_version() -> None:
    assert cli("--version") == (0, f"streamrec {streamrec.__version__}\n", "")


def test_version_imports_nothing_heavy() -> None:
    code = (
        "import sys; from streamrec.cli.program import run; run(['--version'])\n"
        "heavy = {'numpy', 'aiohttp', 'pydantic', 'google.protobuf', 'rich', 's3fs', 'fsspec'}\n"
        "heavy |= {'streamrec.sources.opening', 'streamrec.sources.arrow'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=environment(), text=True, check=True
    )
    assert done.stdout == f"streamrec {streamrec.__version__}\n[]\n"


def test_main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["streamrec", "--version"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("streamrec ")


def test_the_console_script_is_main() -> None:
    found = [e for e in entry_points(group="console_scripts") if e.name == "streamrec"]
    assert all(entry.value == "streamrec.cli:main" for entry in found)


def test_the_module_runs() -> None:
    outcome = in_process("cat", DATA / "numbers-00000-of-00003.tfrecord", "-n", 1)
    assert (outcome.code, outcome.objects[0]["id"], outcome.err) == (0, [0], "")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str) -> None:
    outcome = cli(verb, "--help")
    assert outcome.code == 0
    assert f"Usage: streamrec {verb}" in outcome.out
    assert "--debug" in outcome.out


def test_the_verbs() -> None:
    assert sorted(verbs_of(program)) == VERBS
    assert all(verb in cli("--help").out for verb in VERBS)


@pytest.mark.parametrize("group", [program, program.commands["bench"]], ids=["streamrec", "bench"])
def test_no_short_help_is_cut_off_on_80_columns(group: click.Group) -> None:
    context = click.Context(group, info_name="streamrec", terminal_width=80)
    listed = group.get_help(context).partition("Commands:\n")[2].splitlines()
    assert len(listed) == len(verbs_of(group)), "one line each"
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)


def test_nothing_asked() -> None:
    outcome = cli()
    assert (outcome.code, outcome.out) == (2, "")
    assert "Usage: streamrec" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("frob",), "no such command 'frob'"),
        (("--frob",), "no such option '--frob'"),
        (("cat",), "missing argument 'URL...'"),
        (("cat", "--frob", "x"), "no such option '--frob'"),
        (("cat", "-n", "x", "y"), "'x' is not a valid integer"),
        (("info", "x", "--storage-option", "y"), "'y' is not KEY=VALUE"),
        (("serve",), "missing argument 'CONFIG.toml'"),
        (("demo", "extra"), "unexpected extra argument"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], words: str) -> None:
    assert_one_sentence(cli(*arguments), 2, words, "--help`")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("lanes is wrong; set it to 8, say, or leave it out"), 2),
        (ObjectNotFound("there is no such object; look", url="s3://bucket/key"), 1),
        (StateError("this state is of another stream, as it seems"), 1),
        (OSError(5, "Input/output error: look"), 1),
        (click.ClickException("something that click finds wrong"), 1),
        (KeyError("a mistake of our own"), 1),
    ],
)
def test_errors_become_a_sentence(failing: Any, error: Exception, code: int) -> None:
    failing(error)
    assert_one_sentence(cli("fail"), code, str(error))


def test_a_mistake_of_our_own_asks_for_a_report(failing: Any) -> None:
    failing(ZeroDivisionError("division by zero"))
    assert_one_sentence(cli("fail"), 1, "please report it", "ZeroDivisionError: division by zero")


def test_a_full_disk(failing: Any) -> None:
    failing(OSError(28, "No space left on device"))
    assert_one_sentence(cli("fail"), 1, "the output cannot be written, as the disk is full")


def test_debug_adds_the_traceback(failing: Any) -> None:
    failing(ConfigError("lanes is wrong"))
    outcome = cli("--debug", "fail")
    assert outcome.code == 2
    assert outcome.err.startswith("Traceback")
    assert outcome.err.splitlines()[-1] == "streamrec: error: lanes is wrong"


def test_debug_behind_the_verb() -> None:
    outcome = cli("cat", "s4://x/y", "--debug")
    assert outcome.err.startswith("Traceback")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_interrupted(failing: Any, error: BaseException) -> None:
    failing(error)
    assert cli("fail") == (130, "", "")


def test_interrupted_while_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "streamrec.cli.program":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "streamrec.cli.program")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_while_waiting_for_the_store(store: DevStore) -> None:
    store.faults = [FaultRule(path="00001-of", stall_after=0)]
    options = storage_options(store.storage_options)
    with started("cat", "s3://data/numbers-*", *options) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (130, b"")


WAITS = """
import signal
import sys

from streamrec.cli import main
from streamrec.cli.program import program

@program.command()
def wait():
    try:
        print("waits", flush=True)
        signal.pause()
    finally:
        print("has cleaned up", flush=True)

sys.argv = ["streamrec", "wait"]
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_a_command_as_ctrl_c_does(number: signal.Signals) -> None:
    waits = [sys.executable, "-c", WAITS]
    with subprocess.Popen(waits, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        assert process.stdout.read() == b"has cleaned up\n"
    assert process.returncode == (130 if number == signal.SIGINT else -number)


def test_a_closed_pipe_is_quiet() -> None:
    with started("cat", DATA / "pictures.tfrecord") as process:  # more than a pipe holds
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(100) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


@pytest.mark.parametrize("arguments", ["--help", "cat --help", "--version"])
def test_a_pipe_that_nobody_reads(arguments: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        command(*arguments.split()),
        stdout=writing,
        stderr=subprocess.PIPE,
        env=environment(),
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("arguments", ["info nothing-there", "info", f"verify {TABLE}"])
def test_what_nobody_reads_is_no_success(arguments: str) -> None:
    code = cli(*arguments.split()).code
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        command(*arguments.split()), stdout=writing, stderr=writing, env=environment(), check=False
    )
    os.close(writing)
    assert done.returncode == code > 0


def test_a_locale_without_unicode(tmp_path: Path) -> None:
    place = tmp_path / "日本\udcff.tfrecord"
    shutil.copy(DATA / "numbers-00000-of-00003.tfrecord", place)
    done = subprocess.run(
        command("info", place),
        capture_output=True,
        env=environment(PYTHONIOENCODING="latin-1"),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"/\u65e5\u672c\xff.tfrecord" in done.stdout


@pytest.mark.parametrize("name", ["merge", "split"])
def test_other_names_of_a_verb(name: str) -> None:
    usage, _, rest = cli(name, "--help").out.partition("\n\n")
    assert usage.startswith(f"Usage: streamrec {name} ")
    assert rest == cli("reshard", "--help").out.partition("\n\n")[2]


def test_run_takes_arguments() -> None:
    assert run_program(["--version"]) == 0
